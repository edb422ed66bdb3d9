"""Words: tasks, facts, commands, content. Pure data and pure checks; no I/O."""
