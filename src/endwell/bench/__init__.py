"""`endwell bench`: speed on this machine, with no figure that its check does not support."""
