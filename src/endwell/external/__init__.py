"""Agents that run outside the worker process: programs, and functions in child processes."""
