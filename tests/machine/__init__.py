"""The task machine: examples, a walk over every state of a small world, and random walks in a larger one."""
