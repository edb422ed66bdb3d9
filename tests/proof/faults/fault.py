"""What befalls a worker, as far as a run must know."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from endwell.model.task import Task
    from tests.proof.faults.run import Run


class Fault:
    """One fault. `counts_as` says what it is when it took place while the victim held work."""

    counts_as: ClassVar[str] = "others"
    steps_again: ClassVar[int] = 1
    """How many recorded functions may be called again: one that was killed before its record."""
    may_differ: ClassVar[bool] = False

    def __init__(self) -> None:
        self.is_struck = False
        self.counts = False

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        """Start the worker that it is to befall; what else it needs is closed with the stack."""
        raise NotImplementedError

    async def look(self, task: Task) -> None:
        """Called again and again while the task goes on, with the task as it stands."""

    def __str__(self) -> str:
        about = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__} {about}"
