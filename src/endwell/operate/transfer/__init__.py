"""Export and import of the record as JSON lines."""
