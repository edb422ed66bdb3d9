"""`endwell demo`: tasks end, whatever is killed. Real processes, real signals, a real store."""
