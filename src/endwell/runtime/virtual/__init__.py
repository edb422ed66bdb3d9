"""A runtime in virtual time: many processes in one thread, scheduled by seeded dice."""
