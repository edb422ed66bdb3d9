"""Execution: what a user of the library sees when workers and supervisors do their work, or fail at it."""
