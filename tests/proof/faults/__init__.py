"""Real faults on real processes and servers, with the invariants that must hold after each of them."""
