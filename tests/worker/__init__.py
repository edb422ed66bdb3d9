"""The worker: claims, leases, outages, its watchdog."""
