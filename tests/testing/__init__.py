"""Tests of what tests others: the simulator, its oracle, and the world for users."""
