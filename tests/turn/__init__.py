"""Inside a turn: steps, effects, waits, and how a turn ends."""
