"""What operators use: why, doctor, verify, export and import."""
