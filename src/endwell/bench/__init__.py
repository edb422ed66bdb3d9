"""`endwell bench`: speed measured with real worker processes at full durability."""
