"""The orchestrator's end of the streams: publishes turns, reads results, reclaims entries."""
