"""What can go wrong, each kind a small named object; whoever adds a capability adds its faults."""
