"""The PMO, the supervisor process: fires clocks, reclaims leases, offers ready tasks. It executes nothing."""
