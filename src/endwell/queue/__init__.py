"""How a dispatched turn reaches a worker: the store's own inbox, or a stream that carries it there."""
