"""Each clock rule: its trigger, its outcome, and its race with the event that it waits for."""
