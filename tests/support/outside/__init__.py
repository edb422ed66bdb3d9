"""An app whose agents work outside their worker, and a worker process that serves it."""
