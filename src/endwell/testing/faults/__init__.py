"""The faults of the simulator; a new capability brings its own."""
