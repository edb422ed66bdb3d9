"""Submitting and waiting, from scripts and from async programs."""
