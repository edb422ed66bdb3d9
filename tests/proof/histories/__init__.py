"""Random histories on real stores: whatever is done, in whatever order, what must hold does."""
