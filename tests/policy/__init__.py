"""The pure decisions: when to try again, and when to stop."""
