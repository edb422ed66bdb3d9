"""The task queue protocol on Redis Streams, on a real server."""
