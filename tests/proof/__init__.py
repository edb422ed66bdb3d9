"""The proving tools; README.md says what each proves and how to run it."""
