"""How a turn and a task end. One place writes the terminal sequence, so it is the same for every reason.

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

from endwell.machine.decision import Decision
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, deliverable_id, turn_deliverable_id
from endwell.model.commands import Finish
from endwell.model.inside import family_of, inside_of
from endwell.model.message import Message, MessageType, Report, packed_report
from endwell.model.status import Status
from endwell.model.task import ErrorInfo, Task, error_of
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryAt, after_failure, unpack

_ENDINGS: dict[Status, type[f.Ending]] = {"failed": f.FailedEnding, "timeout": f.TimedOutEnding}
_TURN_OUTCOME: dict[Status, str] = {"failed": "failed", "timeout": "timeout", "cancelled": "canceled"}
_A_PERSON_DECIDED = ("approval_rejected", "approval_expired")
"""Nothing to be tried again: these are no dead letters."""
REFUSED_OUTPUT = "bad_result"
"""A turn that ends so is tried anew in a run of its own: none of its steps is believed."""
_encoder = msgspec.json.Encoder(order="sorted")


def succeed(task: Task, command: Finish, now: int) -> Decision:
    """The turn ends well and the task with it."""
    card_id = deliverable_id(task.id)
    card = Card(
        task.namespace, card_id, task.id, "task.deliverable", command.result, command.result_hash, now
    )
    turn = f.TurnEnded(turn_id=task.turn_id or "", outcome="success", epoch=task.epoch)
    end = f.SucceededEnding(deliverable_card=card_id, deliverable_hash=command.result_hash)
    told = tell_family(task, now, "success", card_id, None)
    return Decision(facts=(*open_intents(task, "the turn ended"), turn, end), cards=(card,), messages=told)


def fail_turn(
    task: Task,
    now: int,
    limits: Limits,
    error: ErrorInfo,
    *,
    fraction: float,
    ends_as: Status = "failed",
    forced: bool = False,
    asked_after: int | None = None,
    escalates: bool = False,
) -> Decision:
    """The turn ends badly: another is scheduled, or the task ends and becomes a dead letter.

    With `escalates` a person is informed once its retries are used up; `ends_by` ends it if that person does
    nothing.
    """
    verdict = after_failure(
        unpack(task.retry_policy, limits.retry),
        retry_count=task.retry_count,
        retryable=error.retryable,
        code=error.code,
        now=now,
        fraction=fraction,
        asked_after=asked_after,
    )
    if not isinstance(verdict, RetryAt) and escalates:
        return _escalated(task, now, limits, error, verdict.retry_count)
    if not isinstance(verdict, RetryAt):
        return end(
            task,
            now,
            s.TIMEOUT if error.code == "approval_expired" else ends_as,
            verdict.reason,
            error=error,
            forced=forced,
            by_watchdog=forced,
            dead_letter=error.code not in _A_PERSON_DECIDED,
            retry_count=verdict.retry_count,
        )
    again = f.TaskRetryScheduled(
        retry_count=verdict.retry_count,
        run_at=verdict.at,
        reason=error.code,
        error=error,
        run=inside_of(task).run + 1 if error.code == REFUSED_OUTPUT else None,
    )
    facts, cards = _turn_over(task, now, ends_as, error, forced)
    return Decision(facts=(*facts, again), cards=cards)


def _escalated(task: Task, now: int, limits: Limits, error: ErrorInfo, retry_count: int) -> Decision:
    """The turn is over; the task is in the hands of the person who answers for it."""
    facts, cards = _turn_over(task, now, s.TIMEOUT, error, True)
    blocked = f.TaskBlocked(
        reason=error.code,
        owner=task.owner or limits.owner,
        remind_at=now + limits.remind_every,
        error=error,
        retry_count=retry_count,
        is_unaccepted=True,
    )
    return Decision(facts=(*facts, blocked), cards=cards)


def _turn_over(
    task: Task, now: int, ends_as: Status, error: ErrorInfo, forced: bool
) -> tuple[tuple[f.Fact, ...], tuple[Card, ...]]:
    """A turn ends and its task goes on. One that was ended by force leaves a deliverable of its own."""
    doubts = open_intents(task, error.code)
    if not forced or task.turn_id is None:
        return (*doubts, *_end_turn(task, ends_as, error.code, forced)), ()
    card = _report(task, now, ends_as, error.code, error, by_watchdog=True)
    card = replace(card, id=turn_deliverable_id(task.turn_id))
    return (*doubts, *_end_turn(task, ends_as, error.code, forced, card)), (card,)


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
    """The task ends without a result: turn, terminal event, report, dead letter, in one commit."""
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
    turn = (*open_intents(task, reason), *_end_turn(task, status, turn_error, forced))
    told = tell_family(task, now, _TURN_OUTCOME[status], card.id, error or _reason_error(reason))
    return Decision(facts=(*before, *turn, ending, *letter), cards=(card,), messages=told)


def cancel(task: Task, now: int, reason: str, by: str) -> Decision:
    """The task ends because somebody asked; whoever holds it finds out at its next write."""
    card = _report(task, now, "cancelled", reason, None)
    ending = f.CancelledEnding(
        reason=reason,
        deliverable_card=card.id,
        deliverable_hash=card.hash,
        retry_count=task.retry_count,
        partial=inside_of(task).draft is not None,
        by=by,
    )
    turn = (*open_intents(task, reason), *_end_turn(task, "cancelled", reason, True))
    told = tell_family(task, now, "canceled", card.id, _reason_error(reason))
    return Decision(facts=(*turn, ending), cards=(card,), messages=told)


def open_intents(task: Task, reason: str) -> tuple[f.Fact, ...]:
    """A turn that ends leaves nothing in flight: what was intended is unknown from now on."""
    if task.inside is None:
        return ()
    return tuple(
        f.EffectDoubted(key=key, reason=reason, is_left_behind=True) for key in inside_of(task).intents
    )


def tell_family(
    task: Task, now: int, status: str, card_id: str, error: ErrorInfo | None
) -> tuple[Message, ...]:
    """The call that asked for the task hears of its end, and its own children are to be settled."""
    told: list[Message] = []
    if task.parent_id is None and task.inside is None:
        return ()  # nobody asked for it, and it asked nobody
    family = family_of(task)
    if task.parent_id is not None and family.parent_call is not None:
        said = None if error is None else {"code": error.code, "message": error.message}
        payload = packed_report(Report(status, said))
        call = family.parent_call
        told.append(_message(task, now, task.parent_id, family.parent_agent, "child", call, card_id, payload))
    if inside_of(task).children:
        told.append(_message(task, now, task.id, task.agent, "stop", task.id))
    return tuple(told)


def _message(
    task: Task,
    now: int,
    to_task: str,
    agent: str,
    kind: MessageType,
    correlation: str,
    card_id: str | None = None,
    payload: str | None = None,
) -> Message:
    return Message(
        namespace=task.namespace,
        id=f"{task.id}~{kind}",
        agent=agent,
        agent_key=None,
        message_type=kind,
        correlation_id=correlation,
        channel=task.channel,
        task_id=to_task,
        turn_id=None,
        turn_epoch=None,
        card_id=card_id,
        payload=payload,
        status="pending",
        created_at=now,
    )


def _reason_error(reason: str) -> ErrorInfo:
    return ErrorInfo(code=reason, message=f"the task ended: {reason}")


def fingerprint(agent: str, reason: str, error: ErrorInfo | None) -> str:
    """The same for failures of one kind, so that they can be listed and replayed together."""
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
    """The deliverable of a task that ended without a result; a draft that was kept is salvaged by it."""
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
        report = {**report, "kind": "fallback_deliverable", **_fallback(task, status, reason, last, draft)}
    if draft is not None:
        report = {**report, "kind": "partial_deliverable", "draft_card": draft}
    content = _encoder.encode(report)
    digest = hashlib.sha256(content).hexdigest()
    return Card(task.namespace, deliverable_id(task.id), task.id, "task.deliverable", content, digest, now)


def _fallback(
    task: Task, status: Status, reason: str, error: ErrorInfo | None, draft: str | None
) -> dict[str, Any]:
    """What a supervisor says in the place of an agent that did not deliver."""
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
