"""PostgreSQL: group commit, as many processes and machines as you like."""
