"""Endwell's tests: one folder per room, and the checks that concern the repository as a whole."""
