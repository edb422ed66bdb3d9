"""The task queue on Redis Streams, both ends: the only room that knows the protocol."""
