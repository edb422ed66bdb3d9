"""Signs of life, and what they are worth: an agent that goes round in circles is nudged, then stopped."""

from __future__ import annotations

import hashlib

import msgspec

from endwell.machine import endings
from endwell.machine.decision import Closing, Decision, Evidence
from endwell.machine.steps import progress_deadline
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, nudge_id
from endwell.model.inside import inside_of
from endwell.model.message import Message, Report, packed_report
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import SECOND, Limits
from endwell.policy.progress import REASON, Verdict, judge_rounds, judge_silence


def progress(task: Task, command: c.Progress, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The attempt says that it is getting somewhere; for how long has nothing new come of it?"""
    verdict = judge_silence(command.without_news, inside_of(task).nudges, limits)
    about = f"nothing new for {command.without_news // SECOND} s"
    return _judged(task, verdict, about, now, limits, command.note)


def repeat(task: Task, command: c.Repeat, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The attempt does the same again and again."""
    verdict = judge_rounds(command.count, inside_of(task).nudges, limits)
    return _judged(task, verdict, f"{command.about}, {command.count} times in a row", now, limits)


def hear(task: Task, command: c.HearNudges, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The agent has read them all."""
    unread = (message for message in seen.messages if message.message_type == "nudge")
    return Decision(closed=tuple(Closing(message.id, "consumed") for message in unread))


def _judged(
    task: Task, verdict: Verdict, about: str, now: int, limits: Limits, note: str | None = None
) -> Decision:
    deadline = progress_deadline(task, now, limits)
    match verdict:
        case "stop":
            error = ErrorInfo(
                code=REASON, message=f"the agent went round in circles: {about}", retryable=False
            )
            return endings.end(task, now, s.FAILED, REASON, error=error, forced=False)
        case "nudge":
            return _nudge(task, about, deadline, now)
        case _:
            return Decision(facts=(f.TaskHeartbeat(progress_by=deadline, note=note),))


def _nudge(task: Task, about: str, deadline: int, now: int) -> Decision:
    """A message that the agent can read (`ctx.nudges()`), once for each time that it was nudged."""
    number = inside_of(task).nudges + 1
    text = f"You seem to go round in circles: {about}. Do something else, ask for help, or give up."
    content = msgspec.json.encode({"about": about, "message": text})
    card_id = nudge_id(task.id, number)
    digest = hashlib.sha256(content).hexdigest()
    card = Card(task.namespace, card_id, task.id, "nudge", content, digest, now)
    message = Message(
        namespace=task.namespace,
        id=card_id,
        agent=task.agent,
        agent_key=task.agent_key,
        message_type="nudge",
        correlation_id=card_id,
        channel=task.channel,
        task_id=task.id,
        turn_id=task.turn_id,
        turn_epoch=task.epoch,
        card_id=card_id,
        payload=packed_report(Report("nudge", {"code": REASON, "message": text})),
        status="pending",
        created_at=now,
    )
    nudged = f.TaskNudged(
        about=about, message_id=message.id, nudges=number, progress_by=deadline, card_hash=digest
    )
    return Decision(facts=(nudged,), cards=(card,), messages=(message,))
