"""The oracle: what must hold at all times. Chaos makes the inputs; this is what judges."""
