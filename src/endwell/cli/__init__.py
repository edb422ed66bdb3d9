"""The command line: each command parses, calls one thing and shows it."""
