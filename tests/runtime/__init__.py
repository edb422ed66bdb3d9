"""The runtime: clocks, ids, threads, the portal, processes, signals."""
