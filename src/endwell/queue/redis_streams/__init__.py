"""The task queue protocol of docs/protocol.md: streams, entries, the worker's end and the orchestrator's."""
