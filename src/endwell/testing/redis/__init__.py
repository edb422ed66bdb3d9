"""A Redis server in memory: its clock is virtual, and its connections are as bad as a test needs."""
