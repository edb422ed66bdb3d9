"""The servers that tests need, started from pip wheels, so that a checkout and Python are enough."""
