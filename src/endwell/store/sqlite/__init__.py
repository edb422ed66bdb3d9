"""SQLite: one file, one writer thread per process, as many processes as you like."""
