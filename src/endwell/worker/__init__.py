"""Executes: claims tasks in batches, keeps its lease alive, runs agents, reports how each turn ended."""
