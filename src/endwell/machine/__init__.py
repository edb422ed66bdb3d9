"""The task machine: decide, evolve, clocks. Pure; stands on model and policy."""
