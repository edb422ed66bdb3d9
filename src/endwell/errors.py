"""Every error of Endwell, as one tree; each has a stable `code` for scripts.

EndwellError
├── UsageError                 the command line or a call was used wrongly
│   └── BadSetting             a setting is unknown, malformed or contradicts another
├── NotFound                   no such task, agent, dead letter
├── Refused                    understood, and refused; nothing was stored
│   ├── BadInput               a payload, name, delay or option that cannot be accepted
│   ├── UnknownAgent           no worker has registered the agent
│   ├── IdempotencyConflict    the key belongs to a task with another agent or payload
│   ├── StaleAttempt           the writer no longer holds the task
│   ├── WrongStatus            the task is in a status that does not allow this
│   └── TaskEnded              the task has already ended
├── StoreError                 the store cannot be used: unreachable, full, corrupt, too new
├── WaitTimedOut               the timeout of a wait for a task passed
├── TaskNotSucceeded           the task ended without a result
│   ├── TaskFailed
│   ├── TaskTimedOut
│   └── TaskCancelled
├── TurnError                  an error inside a turn; agent code may catch it
│   ├── AmbiguousStep          two steps with one identity run at once
│   ├── ReplayMismatch         a recorded step is asked for with other inputs
│   ├── StepTimeout            a step took longer than it may
│   ├── StepFailed             a step failed for good, and its failure is recorded
│   ├── EffectUnknown          the outcome of an effect is unknown; a person is asked
│   ├── EffectRejected         the ledger forbids the effect: other arguments, or abandoned
│   ├── ToolFailed             a tool answered with a failure
│   │   └── ToolTimeout        no answer came in time
│   ├── CallFailed             a called agent's task ended without a result
│   ├── SignalTimeout          the signal did not come in time
│   ├── ApprovalRejected       a person declined
│   ├── ApprovalExpired        no decision came in time
│   └── VersionMismatch        other code recorded the steps so far, and the agent must not continue from them
└── AgentSignal                raised by agent code to steer its own task
    ├── Fail                   end now, without a retry
    ├── Retry                  try again later
    └── NotDone                raised by an effect's function: nothing has happened outside
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar


class EndwellError(Exception):
    """Something went wrong inside Endwell."""

    code: str = "internal"
    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        hint: str | None = None,
        field: str | None = None,
        task_id: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.hint = hint
        self.field = field
        self.task_id = task_id
        if code is not None:
            self.code = code
        super().__init__(self.message)

    def as_dict(self) -> dict[str, str | None]:
        """The content of `{"error": {...}}` for outside programs."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "field": self.field,
            "task_id": self.task_id,
        }


class UsageError(EndwellError):
    """The command line or a call was used wrongly."""

    code = "usage"
    exit_code = 2


class BadSetting(UsageError):
    """A setting is unknown, malformed or contradicts another."""

    code = "bad_setting"


class NotFound(EndwellError):
    """Nothing has that id."""

    code = "not_found"
    exit_code = 3


class Refused(EndwellError):
    """The request was understood and refused; nothing was stored."""

    code = "refused"
    exit_code = 4


class BadInput(Refused):
    """The input cannot be accepted."""

    code = "bad_input"


class UnknownAgent(Refused):
    """No worker has registered this agent."""

    code = "unknown_agent"


class IdempotencyConflict(Refused):
    """The key already belongs to a task with another agent or payload."""

    code = "idempotency_conflict"


class StaleAttempt(Refused):
    """This attempt no longer holds the task; the worker must stop."""

    code = "stale_attempt"


class WrongStatus(Refused):
    """The task's status does not allow this."""

    code = "wrong_status"


class TaskEnded(Refused):
    """The task has already ended."""

    code = "task_ended"


class StoreError(EndwellError):
    """The store cannot be used."""

    code = "store_unreachable"
    exit_code = 5


class WaitTimedOut(EndwellError):
    """The timeout passed before the task ended; the task continues."""

    code = "wait_timed_out"
    exit_code = 6


class TaskNotSucceeded(EndwellError):
    """The task ended without a result; `task` and `deliverable` say how."""

    code = "task_not_succeeded"
    exit_code = 1

    def __init__(self, message: str | None = None, *, task: Any = None, deliverable: Any = None) -> None:
        super().__init__(message, task_id=getattr(task, "id", None))
        self.task = task
        self.deliverable = deliverable


class TaskFailed(TaskNotSucceeded):
    """The task failed."""

    code = "task_failed"


class TaskTimedOut(TaskNotSucceeded):
    """The task did not end by its deadline."""

    code = "task_timed_out"


class TaskCancelled(TaskNotSucceeded):
    """The task was cancelled."""

    code = "task_cancelled"


class TurnError(EndwellError):
    """An error inside a turn; agent code may catch it, otherwise the turn fails."""

    code = "turn_error"
    retryable: ClassVar[bool] = True


class AmbiguousStep(TurnError):
    """Two steps with one identity run at once."""

    code = "ambiguous_step"
    retryable = False


class ReplayMismatch(TurnError):
    """A recorded step is asked for with other inputs."""

    code = "replay_mismatch"
    retryable = False


class StepTimeout(TurnError):
    """A step took longer than it may."""

    code = "step_timeout"


class StepFailed(TurnError):
    """A step failed for good, and its failure is recorded."""

    code = "step_failed"
    retryable = False


class EffectUnknown(TurnError):
    """The outcome of an effect is unknown; a person is asked."""

    code = "effect_unknown"
    retryable = False


class EffectRejected(TurnError):
    """The ledger forbids the effect."""

    code = "effect_rejected"
    retryable = False


class ToolFailed(TurnError):
    """A tool answered with a failure; `error` says which. A retry of the task asks the tool again."""

    code = "tool_failed"

    def __init__(self, message: str | None = None, *, error: Any = None, **about: Any) -> None:
        super().__init__(message, **about)
        self.error = error


class ToolTimeout(ToolFailed):
    """No answer came in time."""

    code = "tool_timeout"


class CallFailed(TurnError):
    """A called agent's task ended without a result; `status`, `error` and `deliverable` say how."""

    code = "call_failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        status: str = "failed",
        error: Any = None,
        deliverable: Any = None,
        **about: Any,
    ) -> None:
        super().__init__(message, **about)
        self.status = status
        self.error = error
        self.deliverable = deliverable


class SignalTimeout(TurnError):
    """The signal did not come in time."""

    code = "signal_timeout"


class ApprovalRejected(TurnError):
    """A person declined."""

    code = "approval_rejected"
    retryable = False


class ApprovalExpired(TurnError):
    """No decision came in time."""

    code = "approval_expired"
    retryable = False


class VersionMismatch(TurnError):
    """Other code recorded the steps so far, and the agent must not continue from them."""

    code = "version_mismatch"
    retryable = False


class AgentSignal(EndwellError):
    """Raised by agent code to steer its own task."""

    code = "agent_signal"


class Fail(AgentSignal):
    """End the task as failed, now and without a retry."""

    code = "agent_gave_up"


class Retry(AgentSignal):
    """Try the task again; `after` says when, instead of the usual backoff."""

    code = "agent_asked_for_retry"

    def __init__(self, message: str | None = None, *, after: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class NotDone(AgentSignal):
    """Raised by an effect's function: nothing has happened outside, so it may be tried again."""

    code = "effect_not_done"
