"""The interface of a real fault."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from endwell.model.task import Task
    from tests.proof.faults.run import Run


class Fault:
    """One fault. `counts_as` is its kind, if it took place while its victim held work."""

    counts_as: ClassVar[str] = "others"
    steps_again: ClassVar[int] = 1
    """Recorded functions that may be called again: a kill before the record costs one call."""
    may_differ: ClassVar[bool] = False

    def __init__(self) -> None:
        self.is_struck = False
        self.counts = False

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        """Start the worker that the fault hits; close what else it needs with the stack."""
        raise NotImplementedError

    async def look(self, task: Task) -> None:
        """Called again and again with the current task, until the task has ended."""

    def __str__(self) -> str:
        about = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__} {about}"
