"""The doctor: looks at everything that must be in order, and says for each thing that is not what to do."""
