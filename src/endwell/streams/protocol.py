"""The keys of the protocol on a Redis server. docs/protocol.md is their description; a test compares them."""

from __future__ import annotations

from typing import Final

import msgspec

PROTOCOL_VERSION: Final = "1.1"
TASK: Final = "stream:task"
RESULT: Final = "stream:result"
DLQ: Final = "stream:dlq"
WORKERS_GROUP: Final = "cg:workers"
ORCHESTRATOR_GROUP: Final = "cg:orchestrator"
DEFAULT_NAMESPACE: Final = "default"
ALL_THERE: Final = ""
"""Among the marks of dead letters one that stands for no task: while it is there, the others are."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of one installation; several share a server by their prefixes."""

    prefix: str = ""

    @classmethod
    def of(cls, prefix: str, namespace: str) -> Names:
        """A namespace other than the usual one has keys of its own."""
        return cls(prefix=prefix if namespace == DEFAULT_NAMESPACE else f"{prefix}{namespace}:")

    @property
    def task(self) -> str:
        """Dispatched turns, from the orchestrator to the workers."""
        return self.prefix + TASK

    @property
    def result(self) -> str:
        """What foreign workers say, to the orchestrator."""
        return self.prefix + RESULT

    @property
    def dlq(self) -> str:
        """Dead letters, for whoever wants to hear of them."""
        return self.prefix + DLQ

    def grant(self, turn_id: str, epoch: int) -> str:
        """Which attempt may execute a turn of a foreign worker."""
        return f"{self.prefix}grant:{turn_id}:{epoch}"

    @property
    def grants(self) -> str:
        """Which grants were given and not yet revoked."""
        return f"{self.prefix}grants"

    @property
    def workers(self) -> str:
        """The names of all foreign workers, live or gone."""
        return f"{self.prefix}workers"

    def worker(self, name: str) -> str:
        """What a foreign worker serves; it lapses by itself."""
        return f"{self.prefix}worker:{name}"

    @property
    def leader(self) -> str:
        """Which orchestrator puts turns on the stream."""
        return f"{self.prefix}orchestrator"

    @property
    def results_cursor(self) -> str:
        """Up to where in the log results have been published."""
        return f"{self.prefix}result:cursor"

    @property
    def settings(self) -> str:
        """The times that a foreign worker must know."""
        return f"{self.prefix}settings"

    @property
    def letters(self) -> str:
        """Which dead letters are on the stream, and where."""
        return f"{self.prefix}dlq:index"

    @property
    def letters_cursor(self) -> str:
        """Up to when the store's dead letters have been looked at."""
        return f"{self.prefix}dlq:cursor"


def consumer_name(worker: str, pid: int) -> str:
    """`{worker}-{pid}`: a worker that is started again under its name is another consumer."""
    return worker if worker.endswith(f"-{pid}") else f"{worker}-{pid}"
