"""Agents outside the worker process: programs and child processes."""
