"""Time, ids, sleep, threads and processes: the only room that touches them.

Everything else receives a `Runtime`, so a simulator can hand out its own: one thread, a virtual
clock, seeded ids.
"""

from endwell.runtime.base import Flag, RunningThread, Runtime
from endwell.runtime.clock import Clock, ManualClock, SystemClock
from endwell.runtime.ids import Ids, SeededIds, SystemIds
from endwell.runtime.portal import Portal

__all__ = [
    "Clock",
    "Flag",
    "Ids",
    "ManualClock",
    "Portal",
    "RunningThread",
    "Runtime",
    "SeededIds",
    "SystemClock",
    "SystemIds",
]
