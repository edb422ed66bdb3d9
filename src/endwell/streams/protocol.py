"""The keys, groups, fields and statuses of the protocol. docs/protocol.md describes them; a test compares."""

from __future__ import annotations

from typing import Final

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


class Names:
    """Every key of one installation; several share a server by their prefixes."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.task = prefix + TASK
        """Stream: offers of turns, from the orchestrator to the workers."""
        self.result = prefix + RESULT
        """Stream: reports of foreign workers, and published results."""
        self.dlq = prefix + DLQ
        """Stream: dead letters."""
        self.grants = f"{prefix}grants"
        """Hash: the grants that were given and not yet revoked."""
        self.workers = f"{prefix}workers"
        """Set: the names of foreign workers, live or gone."""
        self.leader = f"{prefix}orchestrator"
        """String: which orchestrator publishes offers."""
        self.results_cursor = f"{prefix}result:cursor"
        """String: the place in the log up to which results were published."""
        self.settings = f"{prefix}settings"
        """Hash: the times that a foreign worker must know."""
        self.dead_letters = f"{prefix}dlq:index"
        """Hash: which dead letters are on their stream, and where."""
        self.dead_letters_cursor = f"{prefix}dlq:cursor"
        """String: the time up to which the store's dead letters were looked at."""

    @classmethod
    def for_namespace(cls, prefix: str, namespace: str) -> Names:
        """The keys of a namespace; all but the default one have its name in their prefix."""
        return cls(prefix if namespace == DEFAULT_NAMESPACE else f"{prefix}{namespace}:")

    def grant_key(self, turn_id: str, epoch: int) -> str:
        """String: the attempt that may execute a turn of a foreign worker."""
        return f"{self.prefix}grant:{turn_id}:{epoch}"

    def worker_key(self, worker: str) -> str:
        """String: what a foreign worker serves; it expires by itself."""
        return f"{self.prefix}worker:{worker}"


def consumer_name(worker: str, pid: int) -> str:
    """`{worker}-{pid}`: a worker that is started again under its name is another consumer."""
    return worker if worker.endswith(f"-{pid}") else f"{worker}-{pid}"
