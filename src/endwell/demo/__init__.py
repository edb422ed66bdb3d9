"""`endwell demo`: tasks end although processes are killed. Real processes, real signals, a real store."""
