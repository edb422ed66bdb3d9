"""What an attempt records while it works: progress, steps and drafts."""

from __future__ import annotations

from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, CardKind, draft_id, record_id
from endwell.model.inside import inside_of
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits

PERMANENT_FAILURE = "permanent_failure"


def progress_deadline(task: Task, now: int, limits: Limits, allowed: int = 0, over: str = "") -> int:
    """When the next sign of progress is due; without a reap limit, at `ends_by`.

    An open long step keeps the time it was allowed, also when other steps are recorded; `over` has ended.
    """
    if limits.active_reap is None:
        return task.ends_by
    due = now + max(limits.active_reap, allowed + limits.step_grace if allowed else 0)
    open_steps = inside_of(task).doing if task.inside is not None and task.status == s.RUNNING else ()
    return max([due, *(until for step, until in open_steps if step != over)]) if open_steps else due


def start_step(task: Task, command: c.StartStep, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Let the turn be silent until the step's own timeout, and a little longer."""
    deadline = progress_deadline(task, now, limits, command.timeout)
    return Decision(facts=(f.StepStarted(step=command.step, progress_by=deadline),))


def record_step(task: Task, command: c.RecordStep, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Record the step as one fact, and its result as a card that the step's identity finds."""
    deadline = progress_deadline(task, now, limits, over=command.step)
    if command.content is None:
        card = None
    else:
        kind = "step.failure" if command.result_type == PERMANENT_FAILURE else result_kind(command.is_checked)
        card = step_card(task, command.step, command.content, command.content_hash, now, kind)
    recorded = step_recorded(
        command.step, card, deadline, command.result_type, took=command.took, error=command.error
    )
    return Decision(facts=(recorded,), cards=() if card is None else (card,))


def keep_draft(task: Task, command: c.KeepDraft, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Keep the draft as a card. The last one counts; earlier ones stay as cards."""
    card_id = draft_id(task.id, task.version + 1)
    card = Card(task.namespace, card_id, task.id, "task.draft", command.content, command.content_hash, now)
    kept = f.DraftKept(card=card.id, card_hash=card.hash, progress_by=progress_deadline(task, now, limits))
    return Decision(facts=(kept,), cards=(card,))


def result_kind(is_checked: bool) -> CardKind:
    """The kind of a result's card; a checked result names the inputs that it was computed from."""
    return "step.checked" if is_checked else "step.result"


def step_card(task: Task, step: str, content: bytes, digest: str, now: int, kind: CardKind) -> Card:
    """The card of a step's record."""
    return Card(task.namespace, record_id(task.id, step), task.id, kind, content, digest, now)


def step_recorded(
    step: str,
    card: Card | None,
    deadline: int,
    result_type: str,
    *,
    took: int = 0,
    error: ErrorInfo | None = None,
) -> f.StepRecorded:
    """The fact of a step's record; it names the card's kind where the result type leaves that open."""
    is_told = card is not None and card.kind in ("step.checked", "step.reference")
    return f.StepRecorded(
        step=step,
        progress_by=deadline,
        result_type=result_type,
        card=card.id if card else None,
        card_hash=card.hash if card else None,
        took=took,
        error=error,
        card_kind=card.kind if card and is_told else None,
    )
