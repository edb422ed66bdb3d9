"""The keys, groups, fields and statuses of the protocol. docs/protocol.md describes them; a test compares."""

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

REQUIRED_TASK_FIELDS: Final = ("task_id", "tool_name", "payload", "turn", "epoch")
TASK_FIELDS: Final = (
    "task_id",
    "run_id",
    "tool_name",
    "payload",
    "workflow_id",
    "step_index",
    "retry_count",
    "idempotency_key",
    "turn",
    "epoch",
)
REQUIRED_REPORT_FIELDS: Final = ("task_id", "status", "turn", "epoch", "worker_id", "message_id")
REPORT_FIELDS: Final = (
    *REQUIRED_REPORT_FIELDS,
    "attempt",
    "output",
    "error",
    "tool_name",
    "note",
    "event_id",
)
LEAVING: Final = "leaving"
REPORT_STATUSES: Final = ("claimed", "succeeded", "failed", "progress", "returned", "passed", LEAVING)
DLQ_FIELDS: Final = (
    "task_id",
    "tool_name",
    "payload",
    "error",
    "retry_count",
    "failed_at",
    "reason",
    "fingerprint",
    "message_id",
    "stream",
)


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of one installation; several share a server by their prefixes."""

    prefix: str = ""

    @classmethod
    def for_namespace(cls, prefix: str, namespace: str) -> Names:
        """The keys of a namespace; all but the default one have its name in their prefix."""
        return cls(prefix=prefix if namespace == DEFAULT_NAMESPACE else f"{prefix}{namespace}:")

    @property
    def task(self) -> str:
        """Stream: offers of turns, from the orchestrator to the workers."""
        return self.prefix + TASK

    @property
    def result(self) -> str:
        """Stream: reports of foreign workers, and published results."""
        return self.prefix + RESULT

    @property
    def dlq(self) -> str:
        """Stream: dead letters."""
        return self.prefix + DLQ

    def grant_key(self, turn_id: str, epoch: int) -> str:
        """String: the attempt that may execute a turn of a foreign worker."""
        return f"{self.prefix}grant:{turn_id}:{epoch}"

    @property
    def grants(self) -> str:
        """Hash: the grants that were given and not yet revoked."""
        return f"{self.prefix}grants"

    @property
    def workers(self) -> str:
        """Set: the names of foreign workers, live or gone."""
        return f"{self.prefix}workers"

    def worker(self, name: str) -> str:
        """String: what a foreign worker serves; it expires by itself."""
        return f"{self.prefix}worker:{name}"

    @property
    def leader(self) -> str:
        """String: which orchestrator publishes offers."""
        return f"{self.prefix}orchestrator"

    @property
    def results_cursor(self) -> str:
        """String: the place in the log up to which results were published."""
        return f"{self.prefix}result:cursor"

    @property
    def settings(self) -> str:
        """Hash: the times that a foreign worker must know."""
        return f"{self.prefix}settings"

    @property
    def dead_letters(self) -> str:
        """Hash: which dead letters are on their stream, and where."""
        return f"{self.prefix}dlq:index"

    @property
    def dead_letters_cursor(self) -> str:
        """String: the time up to which the store's dead letters were looked at."""
        return f"{self.prefix}dlq:cursor"


def consumer_name(worker: str, pid: int) -> str:
    """`{worker}-{pid}`: a worker that is started again under its name is another consumer."""
    return worker if worker.endswith(f"-{pid}") else f"{worker}-{pid}"
