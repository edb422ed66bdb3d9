"""An agent: a named function that carries out tasks, and the options it was registered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from endwell.errors import BadInput, UsageError, VersionMismatch
from endwell.model import content
from endwell.model.commands import AgentSpec
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.model.typed import Shape, Signature, signature_of
from endwell.policy.approval import AgentOptions, packed_options
from endwell.policy.retry import RetryPolicy, pack_policy
from endwell.policy.submitting import SHORTEST_DEADLINE_SECONDS, Seconds, microseconds
from endwell.turn.held_turn import OutsideRunner
from endwell.turn.recorder import StepDefaults

OnVersionChange = Literal["continue", "refuse"]
"""Whether an agent continues from steps that another version of it has recorded."""
MOST_CONCURRENCY = 10_000


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """`give_up_on` lists exceptions that end a task without a retry.

    With `outside` the function is not called in the worker: a program or another process does the work.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature
    retry: RetryPolicy | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    concurrency: int | None = None
    deadline: int | None = None
    version: str | None = None
    step_timeout: float | None = None
    on_version_change: OnVersionChange = "continue"
    kind: str = "agent"
    options: AgentOptions = AgentOptions()
    outside: OutsideRunner | None = None

    def checked_payload(self, value: Any) -> Any:
        """The payload as the function's own type; a wrong one is refused, naming the field."""
        if not self.signature.takes_payload:
            if value is not None:
                raise BadInput(f"agent {self.name} takes no payload", code="bad_payload", field="payload")
            return None
        if value is None and self.signature.payload_optional:
            return None
        return self.signature.payload.check(value, "payload")

    def spec(self) -> AgentSpec:
        """What the store keeps, so that a client without the code can submit tasks."""
        schema = self.signature.payload.schema() if self.signature.takes_payload else {"type": "null"}
        return AgentSpec(
            name=self.name,
            version=self.version,
            concurrency=self.concurrency,
            retry_policy=pack_policy(self.retry) if self.retry else None,
            deadline=self.deadline,
            payload_schema=None if schema is None else content.encode(schema, what="schema").decode(),
            kind=self.kind,
            options=packed_options(self.options),
        )

    def call_arguments(self, context: Any, payload: Any) -> tuple[Any, ...]:
        given: tuple[Any, ...] = (context,) if self.signature.wants_context else ()
        if self.signature.takes_payload and not (payload is None and self.signature.payload_optional):
            given = (*given, payload)
        return given

    def check_result(self, encoded: bytes) -> None:
        """Refuse a result that is not of the declared type, naming the field."""
        if self.result.annotation is not Any:
            self.result.check(content.decode_stored(encoded), "result")

    @property
    def result(self) -> Shape:
        """The declared type of what the agent returns."""
        return self.signature.result

    @property
    def step_defaults(self) -> StepDefaults:
        return StepDefaults(timeout_seconds=self.step_timeout, give_up_on=self.give_up_on)

    def refuse_other_version(self, task: Task) -> None:
        """Refuse a task whose steps another version recorded, if the agent asks for that."""
        recorded = inside_of(task).version  # this version, as long as no step is recorded
        if self.on_version_change == "refuse" and recorded != self.version:
            raise VersionMismatch(
                f"version {recorded or 'without a name'} of {self.name} recorded the steps of task "
                f"{task.id}, and this is version {self.version or 'without a name'}",
                hint="serve it with the old version, or say on_version_change='continue'",
                task_id=task.id,
            )


def agent_of(name: str, function: Callable[..., Any], **options: Any) -> Agent:
    return Agent(name=name, function=function, signature=signature_of(function), **options)


def checked_concurrency(name: str, concurrency: int | None) -> int | None:
    """How many turns may run at once in the whole installation; None is no limit."""
    is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency is not None and not (is_count and 1 <= concurrency <= MOST_CONCURRENCY):
        raise UsageError(
            f"agent {name!r}: concurrency must be a whole number between 1 and {MOST_CONCURRENCY:,}"
        )
    return concurrency


def checked_version_change(name: str, given: OnVersionChange) -> OnVersionChange:
    """What to do with steps that another version has recorded."""
    if given not in ("continue", "refuse"):
        raise UsageError(f'agent {name!r}: on_version_change must be "continue" or "refuse"')
    return given


def checked_timeout(value: Seconds | None, field: str) -> float | None:
    checked = microseconds(value, field, least=SHORTEST_DEADLINE_SECONDS)
    return None if checked is None else checked / SECOND


def checked_exceptions(name: str, given: object) -> tuple[type[BaseException], ...]:
    """The exceptions that end a task without a retry."""
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise UsageError(f"agent {name!r}: give_up_on must be an exception class, or a tuple of them")
    return kinds
