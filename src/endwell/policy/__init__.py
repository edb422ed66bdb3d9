"""Pure decisions that return values: when to retry, when a loop is a runaway."""
