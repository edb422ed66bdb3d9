"""What is special about a file: locks, processes, disks."""
