"""Fuzzing: every decoder accepts an input or refuses it with an error of its own; none crashes or hangs."""
