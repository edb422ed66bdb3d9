"""Every list of faults; importing them registers what they say. Whoever adds a list names it here."""

from endwell.testing.faults import (
    of_bells,
    of_foreign,
    of_people,
    of_processes,
    of_queues,
    of_relays,
    of_stores,
    of_time,
    of_tools,
)

LISTS = (of_bells, of_foreign, of_people, of_processes, of_queues, of_relays, of_stores, of_time, of_tools)
