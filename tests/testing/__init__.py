"""Tests of endwell.testing: the simulator, its oracle, and the world for users."""
