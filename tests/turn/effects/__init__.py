"""Effects: called at most once, and settled when it is unknown whether they took place."""
