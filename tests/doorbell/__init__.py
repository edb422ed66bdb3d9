"""The doorbells: one contract, run on each of them."""
