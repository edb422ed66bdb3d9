"""The store on one SQLite file: one writer at a time, from any number of processes of one machine."""
