"""The task queue on Redis Streams, both ends: the only room that knows the protocol (docs/protocol.md).

- `protocol`, `entries`: keys, fields and entries; pure.
- `task_streams`, `consumer_group`, `pending`, `dead_letter_stream`, `foreign_keys`: every Redis command.
- `intake`: the worker's end. `orchestrator/`: the orchestrator's end. `loops`: what both run their work by.
"""
