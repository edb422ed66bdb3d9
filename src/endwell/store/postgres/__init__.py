"""The store on PostgreSQL: group commit on two connections, from any number of processes and machines."""
