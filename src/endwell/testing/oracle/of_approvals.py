"""What must hold of approvals before a start, after every single transaction."""

from __future__ import annotations

from collections.abc import Iterator

from endwell.model import facts as f
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import Step, View


@invariant("commit")
def what_needs_an_approval_has_one_for_its_payload(view: View) -> Iterator[str]:
    """No task whose agent has a registered approval rule runs before people agreed to exactly its payload."""
    for step in view.steps:
        task_id = step.event.task_id
        if isinstance(step.fact, f.TaskCreated) and _has_rule(view, step.fact.agent):
            view.ruled.add(task_id)
        elif isinstance(step.fact, f.ApprovalApproved) and step.fact.id is None:
            view.agreed[task_id] = _agreed_hash(view, step, step.fact)
        is_due = isinstance(step.fact, f.TaskClaimed) and task_id in view.ruled
        if is_due and view.agreed.get(task_id) != step.after.payload_hash:
            yield f"{task_id} ({step.after.agent}) runs although nobody agreed to its payload"


def _has_rule(view: View, agent: str) -> bool:
    return bool(view.ask("SELECT 1 FROM agent_rules WHERE agent = ? LIMIT 1", (agent,)))


def _agreed_hash(view: View, step: Step, approved: f.ApprovalApproved) -> str:
    """What people saw: the payload of this task, or of the one whose approval counts again."""
    if approved.carried_from is None:
        return step.after.payload_hash
    return view.agreed.get(approved.carried_from, "")
