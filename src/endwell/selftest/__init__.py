"""`endwell selftest`: acceptance criteria, tried on the operator's own servers."""
