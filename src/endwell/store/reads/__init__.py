"""Questions to the store, the same on every database: each is one named query, or a few."""
