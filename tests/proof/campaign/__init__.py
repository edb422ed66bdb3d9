"""All that is tried on this product, in one run with figures to reach: `make campaign`, `make soak`."""
