"""The oracle: invariants that must hold at all times, and the view by which it judges them."""
