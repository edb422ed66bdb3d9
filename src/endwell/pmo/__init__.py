"""Supervises: fires clocks, takes turns from dead workers, offers ready tasks. Never executes."""
