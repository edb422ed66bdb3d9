"""Real faults on real processes and servers, and what must hold after each of them."""
