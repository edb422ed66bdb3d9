"""Invariants of approvals before a start, judged after every transaction."""

from __future__ import annotations

from collections.abc import Iterator

from endwell.model import facts as f
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import CommitStep, OracleView


@invariant("commit")
def what_needs_an_approval_has_one_for_its_payload(view: OracleView) -> Iterator[str]:
    """No task whose agent has a registered approval rule starts before people agreed to its payload."""
    for step in view.steps:
        task_id = step.event.task_id
        if isinstance(step.fact, f.ApprovalApproved) and step.fact.id is None:
            view.agreed[task_id] = _agreed_hash(view, step, step.fact)
        if not isinstance(step.fact, f.TaskClaimed) or step.before is None or step.before.started_at:
            continue
        is_agreed = view.agreed.get(task_id) == step.after.payload_hash
        if not is_agreed and _has_rule(view, step.after.agent):
            yield f"{task_id} ({step.after.agent}) runs although its payload was not approved"


def _has_rule(view: OracleView, agent: str) -> bool:
    return bool(view.query_rows("SELECT 1 FROM agent_rules WHERE agent = ? LIMIT 1", (agent,)))


def _agreed_hash(view: OracleView, step: CommitStep, approved: f.ApprovalApproved) -> str:
    """Hash the payload that people saw: of this task, or of the task whose approval is carried over."""
    if approved.carried_from is None:
        return step.after.payload_hash
    return view.agreed.get(approved.carried_from, "")
