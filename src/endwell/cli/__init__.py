"""The command line: one file per noun. A command parses, calls one thing and shows the answer."""
