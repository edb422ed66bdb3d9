-- Nothing changes here: one writer at a time adds all events of a command at once.
SELECT 1;
