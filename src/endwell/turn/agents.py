"""An agent: a named function that carries out tasks, and the options it was registered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from endwell.errors import BadInput
from endwell.model import content
from endwell.model.commands import AgentSpec
from endwell.model.typed import Shape, Signature, signature_of
from endwell.policy.approval import AgentOptions, packed_options
from endwell.policy.retry import RetryPolicy, pack
from endwell.turn.outside import OutsideRunner

OnVersionChange = Literal["continue", "refuse"]
"""Whether an agent goes on from steps that another version of it has recorded."""


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
        """What the store is told, so that anybody may submit without knowing the code."""
        schema = self.signature.payload.schema() if self.signature.takes_payload else {"type": "null"}
        return AgentSpec(
            name=self.name,
            version=self.version,
            concurrency=self.concurrency,
            retry_policy=pack(self.retry) if self.retry else None,
            deadline=self.deadline,
            payload_schema=None if schema is None else content.encode(schema, what="schema").decode(),
            kind=self.kind,
            options=packed_options(self.options),
        )

    def arguments(self, context: Any, payload: Any) -> tuple[Any, ...]:
        """What the function is called with."""
        given: tuple[Any, ...] = (context,) if self.signature.wants_context else ()
        if self.signature.takes_payload and not (payload is None and self.signature.payload_optional):
            given = (*given, payload)
        return given

    def check_result(self, encoded: bytes) -> None:
        """A result that is not of the declared type is refused, naming the field."""
        if self.result.annotation is not Any:
            self.result.check(content.decode_stored(encoded), "result")

    @property
    def result(self) -> Shape:
        """The declared type of what the agent returns."""
        return self.signature.result


def agent_of(name: str, function: Callable[..., Any], **options: Any) -> Agent:
    """An agent from a function; a function that cannot be one is refused."""
    return Agent(name=name, function=function, signature=signature_of(function), **options)
