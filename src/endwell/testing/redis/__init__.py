"""A Redis server that is none: its streams in memory, its clock virtual, its lines as bad as need be."""
