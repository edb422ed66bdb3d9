"""What is special about a server: lost connections, conflicts, outages."""
