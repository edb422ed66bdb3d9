"""The campaign (`make campaign`) and the soak (`make soak`): all proving tools, with figures to reach."""
