"""The truth, and the only room with SQL: the one door (sans-I/O), its drivers, and questions to ask."""
