"""One turn of an agent: its context and verbs, what they record, and how the turn ends."""
