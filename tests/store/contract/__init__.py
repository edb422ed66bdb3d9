"""What every store promises, whichever database is behind it."""
