"""Time, ids, sleep, threads and processes: the only room that touches them.

Every other room receives a `Runtime`, so that the simulator can pass its own: one thread, a virtual clock,
seeded ids.
"""

from endwell.runtime.base import Runtime
from endwell.runtime.clock import Clock, SystemClock
from endwell.runtime.ids import Ids, SeededIds, SystemIds
from endwell.runtime.portal import Portal

__all__ = [
    "Clock",
    "Ids",
    "Portal",
    "Runtime",
    "SeededIds",
    "SystemClock",
    "SystemIds",
]
