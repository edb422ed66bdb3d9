"""Invariants of foreign workers: no other client reports on a turn, and no grant outlives its attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from endwell.model import facts as f
from endwell.model.content import fingerprint
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import OracleView

FORGED: Final = "forged by a stranger"
"""The result, error and note of every forged report."""
_FORGED_HASH: Final = fingerprint(f'"{FORGED}"'.encode())
_AGENTS: Final = "SELECT agents FROM sessions WHERE id = ?"


@invariant("commit")
def strangers_change_nothing(view: OracleView) -> Iterator[str]:
    """No forged result, error or note is ever in the log."""
    for step in view.steps:
        fact = step.fact
        said = (
            getattr(fact, "deliverable_hash", None) == _FORGED_HASH,
            FORGED in str(getattr(fact, "error", None)),
            getattr(fact, "note", None) == FORGED,
        )
        if any(said):
            yield f"{step.event.task_id}: a forged report was believed ({fact.type})"


@invariant("commit")
def workers_claim_only_what_they_serve(view: OracleView) -> Iterator[str]:
    """A session that claims a task serves the task's agent."""
    for step in view.steps:
        if isinstance(step.fact, f.TaskClaimed):
            for (agents,) in view.query_rows(_AGENTS, (step.fact.session_id,)):
                if step.after.agent not in agents.split():
                    yield f"{step.event.task_id} of {step.after.agent} was claimed by a worker of {agents}"


@invariant("rest")
def no_grant_outlives_its_attempt(view: OracleView) -> Iterator[str]:
    """When every task has ended, no grant is left."""
    if view.streams is None:
        return
    for key, value in view.streams.keys.items():
        if key.startswith(b"grant:") and value != b"-":
            yield f"{key.decode()} still grants {value!r}"
