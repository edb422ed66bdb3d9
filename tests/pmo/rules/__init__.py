"""Each rule of the supervisors: its trigger, its outcome, and its race with whoever does the right thing."""
