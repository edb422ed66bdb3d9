"""Every list of faults. Importing this module registers them; name a new list here."""

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
