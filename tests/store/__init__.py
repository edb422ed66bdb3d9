"""The store: one contract suite on every database, and what is special about each."""
