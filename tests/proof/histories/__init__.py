"""Random histories on real stores: any commands in any order, with invariants checked after each."""
