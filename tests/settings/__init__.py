"""Settings: their sources, what is refused, and what is never shown."""
