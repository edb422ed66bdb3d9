"""The PMO: clocks, limits, reclaims, relay."""
