"""How a turn and a task end. One place makes the terminal sequence, so it is the same for every reason.

| reason                                   | turn event | then             | task ends as | dead letter |
|------------------------------------------|------------|------------------|--------------|-------------|
| exception, `timeout_reaped_by_watchdog`   | failed     | retry            | failed       | yes         |
| `suspend_timeout`                         | timeout    | retry            | timeout      | yes         |
| `dispatch_timeout`                        | timeout    | retry, a person  | timeout      | yes         |
| `crash_limit`, `runaway_guard`, bad input | failed     | –                | failed       | yes         |
| `no_progress`                             | failed     | –                | failed       | yes         |
| `ends_by`                                 | timeout    | –                | timeout      | yes         |
| approval rejected / expired               | –          | –                | failed / timeout | no      |
| cancelled                                 | canceled   | –                | cancelled    | no          |

After the last retry of a `dispatch_timeout` the task is `blocked` and its owner is informed. `ends_by` keeps
running: unless that person acts, it ends the task as timeout, reason `dispatch_timeout`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
from msgspec.structs import replace

from endwell.machine.decision import NOTHING, Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, deliverable_id, turn_deliverable_id
from endwell.model.inside import family_of, inside_of
from endwell.model.message import Message, MessageType, Report, packed_report, pending_message
from endwell.model.status import Status
from endwell.model.task import ErrorInfo, Task, error_of
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryAt, after_failure, unpack_policy

_ENDINGS: dict[Status, type[f.Ending]] = {"failed": f.FailedEnding, "timeout": f.TimedOutEnding}
_TURN_OUTCOME: dict[Status, str] = {"failed": "failed", "timeout": "timeout", "cancelled": "canceled"}
_DECIDED_BY_PEOPLE = ("approval_rejected", "approval_expired")
"""Reasons that make no dead letter: there is nothing to try again."""
REFUSED_OUTPUT = "bad_result"
"""The error of a refused result: the next turn starts a run of its own, and reuses none of the steps."""
_encoder = msgspec.json.Encoder(order="sorted")


def finish(task: Task, command: c.Finish, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the turn and the task with a result."""
    card_id = deliverable_id(task.id)
    card = Card(
        task.namespace, card_id, task.id, "task.deliverable", command.result, command.result_hash, now
    )
    turn = f.TurnEnded(turn_id=task.turn_id or "", outcome="success", epoch=task.epoch)
    end = f.SucceededEnding(deliverable_card=card_id, deliverable_hash=command.result_hash)
    told = tell_family(task, now, "success", card_id, None)
    return Decision(facts=(*doubt_intents(task, "the turn ended"), turn, end), cards=(card,), messages=told)


def fail_turn(task: Task, command: c.FailTurn, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the turn with the error that its attempt reports."""
    failure = TurnFailure(command.error, command.fraction, asked_after=command.retry_after)
    return end_failed_turn(task, failure, now, limits)


def cancel_task(task: Task, command: c.Cancel, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the task on request."""
    return cancel(task, now, command.reason, command.actor)


def disown(task: Task, command: c.Disown, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Cancel the child of an ended parent, or leave it with an owner, as the parent's call said."""
    if task.parent_id != command.parent_id:
        return NOTHING
    if family_of(task).on_parent_end == "cancel":
        return cancel(task, now, "parent_ended", command.actor)
    owner = task.owner or command.owner or limits.owner
    return Decision(facts=(f.TaskOrphaned(parent_id=command.parent_id, owner=owner),))


class TurnFailure(msgspec.Struct, frozen=True):
    """How a turn failed, and what follows for its task.

    `forced`: a supervisor ends the turn. `asked_after`: the delay that the agent asked for. `escalates`: once
    the retries are used up the task is blocked and its owner informed; `ends_by` ends it if that person does
    not act. Otherwise the task ends as `ends_as`.
    """

    error: ErrorInfo
    fraction: float
    ends_as: Status = "failed"
    forced: bool = False
    asked_after: int | None = None
    escalates: bool = False


def end_failed_turn(task: Task, failure: TurnFailure, now: int, limits: Limits) -> Decision:
    """Schedule a retry, block the task, or end it as a dead letter."""
    error = failure.error
    verdict = after_failure(
        unpack_policy(task.retry_policy, limits.retry),
        retry_count=task.retry_count,
        retryable=error.retryable,
        code=error.code,
        now=now,
        fraction=failure.fraction,
        asked_after=failure.asked_after,
    )
    if isinstance(verdict, RetryAt):
        return _retry_turn(task, failure, verdict, now)
    if failure.escalates:
        return _escalate_turn(task, failure, verdict.retry_count, now, limits)
    return end(
        task,
        now,
        s.TIMEOUT if error.code == "approval_expired" else failure.ends_as,
        verdict.reason,
        error=error,
        forced=failure.forced,
        by_watchdog=failure.forced,
        dead_letter=error.code not in _DECIDED_BY_PEOPLE,
        retry_count=verdict.retry_count,
    )


def _retry_turn(task: Task, failure: TurnFailure, at: RetryAt, now: int) -> Decision:
    error = failure.error
    again = f.TaskRetryScheduled(
        retry_count=at.retry_count,
        run_at=at.at,
        reason=error.code,
        error=error,
        run=inside_of(task).run + 1 if error.code == REFUSED_OUTPUT else None,
    )
    facts, cards = _end_turn_alone(task, failure, now)
    return Decision(facts=(*facts, again), cards=cards)


def _escalate_turn(task: Task, failure: TurnFailure, retry_count: int, now: int, limits: Limits) -> Decision:
    """End the turn and hold the task for its owner, who has accepted nothing yet."""
    facts, cards = _end_turn_alone(task, failure, now)
    blocked = f.TaskBlocked(
        reason=failure.error.code,
        owner=task.owner or limits.owner,
        remind_at=now + limits.remind_every,
        error=failure.error,
        retry_count=retry_count,
        is_unaccepted=True,
    )
    return Decision(facts=(*facts, blocked), cards=cards)


def _end_turn_alone(
    task: Task, failure: TurnFailure, now: int
) -> tuple[tuple[f.Fact, ...], tuple[Card, ...]]:
    """End a turn whose task continues. If it is ended by force it leaves a deliverable of its own."""
    code, ends_as = failure.error.code, failure.ends_as
    doubts = doubt_intents(task, code)
    if not failure.forced or task.turn_id is None:
        return (*doubts, *_end_turn(task, ends_as, code, failure.forced)), ()
    card = _report(task, now, ends_as, code, failure.error, by_watchdog=True)
    card = replace(card, id=turn_deliverable_id(task.turn_id))
    return (*doubts, *_end_turn(task, ends_as, code, failure.forced, card)), (card,)


def end(
    task: Task,
    now: int,
    status: Status,
    reason: str,
    *,
    error: ErrorInfo | None = None,
    forced: bool = True,
    by_watchdog: bool = False,
    dead_letter: bool = True,
    retry_count: int | None = None,
    before: tuple[f.Fact, ...] = (),
) -> Decision:
    """End the task without a result: turn, terminal event, report and dead letter in one commit."""
    count = task.retry_count if retry_count is None else retry_count
    card = _report(task, now, status, reason, error, by_watchdog=by_watchdog, retry_count=count)
    ending = _ENDINGS[status](
        reason=reason,
        deliverable_card=card.id,
        deliverable_hash=card.hash,
        error=error,
        retry_count=count,
        partial=inside_of(task).draft is not None,
    )
    letter = (f.TaskDeadLettered(fingerprint=fingerprint(task.agent, reason, error)),) if dead_letter else ()
    turn_error = reason if error is None else error.code
    turn = (*doubt_intents(task, reason), *_end_turn(task, status, turn_error, forced))
    told = tell_family(task, now, _TURN_OUTCOME[status], card.id, error or _reason_error(reason))
    return Decision(facts=(*before, *turn, ending, *letter), cards=(card,), messages=told)


def cancel(task: Task, now: int, reason: str, by: str) -> Decision:
    """End the task on request; the attempt that holds it is refused at its next write."""
    card = _report(task, now, "cancelled", reason, None)
    ending = f.CancelledEnding(
        reason=reason,
        deliverable_card=card.id,
        deliverable_hash=card.hash,
        retry_count=task.retry_count,
        partial=inside_of(task).draft is not None,
        by=by,
    )
    turn = (*doubt_intents(task, reason), *_end_turn(task, "cancelled", reason, True))
    told = tell_family(task, now, "canceled", card.id, _reason_error(reason))
    return Decision(facts=(*turn, ending), cards=(card,), messages=told)


def doubt_intents(task: Task, reason: str) -> tuple[f.Fact, ...]:
    """Mark the effects that an ending turn has in flight as unknown."""
    if task.inside is None:
        return ()
    return tuple(
        f.EffectDoubted(key=key, reason=reason, is_left_behind=True) for key in inside_of(task).intents
    )


def tell_family(
    task: Task, now: int, status: str, card_id: str, error: ErrorInfo | None
) -> tuple[Message, ...]:
    """Tell the parent's call that the task ended, and ask for its own children to be settled."""
    if task.parent_id is None and task.inside is None:
        return ()
    told: list[Message] = []
    family = family_of(task)
    if task.parent_id is not None and family.parent_call is not None:
        said = None if error is None else {"code": error.code, "message": error.message}
        payload = packed_report(Report(status, said))
        call = family.parent_call
        to_parent = _family_message(task, "child", call, now)
        told.append(
            replace(
                to_parent,
                task_id=task.parent_id,
                agent=family.parent_agent,
                card_id=card_id,
                payload=payload,
            )
        )
    if inside_of(task).children:
        told.append(_family_message(task, "stop", task.id, now))
    return tuple(told)


def _family_message(task: Task, kind: MessageType, correlation: str, now: int) -> Message:
    """A message about the task's end, as yet to the task itself; it concerns no turn."""
    message = pending_message(task, f"{task.id}~{kind}", kind, correlation, now)
    return replace(message, agent_key=None, turn_id=None, turn_epoch=None)


def _reason_error(reason: str) -> ErrorInfo:
    return ErrorInfo(code=reason, message=f"the task ended: {reason}")


def fingerprint(agent: str, reason: str, error: ErrorInfo | None) -> str:
    """Equal for failures of one kind, so that dead letters can be listed and replayed together."""
    message = re.sub(r"\d+", "#", error.message.split("\n")[0]) if error else ""
    parts = (agent, reason, error.code if error else "", error.type if error else "", message)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]


def _end_turn(
    task: Task, status: Status, reason: str, forced: bool, card: Card | None = None
) -> tuple[f.Fact, ...]:
    if task.turn_id is None:
        return ()
    epoch = task.epoch + 1 if forced else task.epoch
    ended = f.TurnEnded(
        turn_id=task.turn_id,
        outcome=_TURN_OUTCOME[status],
        epoch=epoch,
        error=reason,
        deliverable_card=card.id if card else None,
        deliverable_hash=card.hash if card else None,
        partial=card is not None and inside_of(task).draft is not None,
    )
    if not forced:
        return (ended,)
    reaped = f.TaskReaped(reason=reason, epoch=epoch, attempt_id=task.attempt_id, session_id=task.session_id)
    return (reaped, ended)


def _report(
    task: Task,
    now: int,
    status: Status,
    reason: str,
    error: ErrorInfo | None,
    *,
    by_watchdog: bool = False,
    retry_count: int | None = None,
) -> Card:
    """The deliverable of a task that ended without a result; it salvages the last draft."""
    last = error or error_of(task)
    report = {
        "kind": "failure_report",
        "schema_version": 1,
        "status": status,
        "reason": reason,
        "error": msgspec.to_builtins(last) if last else None,
        "agent": task.agent,
        "retry_count": task.retry_count if retry_count is None else retry_count,
        "dispatch_count": task.dispatch_count,
        "crash_count": task.crash_count,
    }
    draft = inside_of(task).draft
    if by_watchdog:
        report = {
            **report,
            "kind": "fallback_deliverable",
            **_fallback_fields(task, status, reason, last, draft),
        }
    if draft is not None:
        report = {**report, "kind": "partial_deliverable", "draft_card": draft}
    content = _encoder.encode(report)
    digest = hashlib.sha256(content).hexdigest()
    return Card(task.namespace, deliverable_id(task.id), task.id, "task.deliverable", content, digest, now)


def _fallback_fields(
    task: Task, status: Status, reason: str, error: ErrorInfo | None, draft: str | None
) -> dict[str, Any]:
    """What a supervisor adds to the report of an agent that did not deliver."""
    return {
        "message": f"no deliverable came of turn {task.turn_id}: {reason}",
        "fields": {"summary": error.message if error else reason, "output": draft, "reason": reason},
        "diagnostics": {
            "source": "pmo.watchdog",
            "agent_turn_id": task.turn_id,
            "step_count": inside_of(task).steps,
            "partial": draft is not None,
            "terminal_status": status,
        },
    }
