"""The repeat guard: an agent that repeats itself, or reports nothing new, is nudged and then stopped."""

from __future__ import annotations

import msgspec

from endwell.machine import endings
from endwell.machine.decision import Closing, Decision, Evidence
from endwell.machine.steps import progress_deadline
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, nudge_id
from endwell.model.content import fingerprint
from endwell.model.inside import inside_of
from endwell.model.message import Report, packed_report, pending_message
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits
from endwell.policy.progress import REASON, Verdict, judge_rounds, judge_silence


def report_progress(task: Task, command: c.Progress, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Note a sign of life, and judge for how long nothing new was recorded."""
    verdict = judge_silence(command.without_news, inside_of(task).nudges, limits)
    about = f"nothing new for {command.without_news // SECOND} s"
    return _act_on_verdict(task, verdict, about, now, limits, command.note)


def report_repeat(task: Task, command: c.Repeat, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Judge how often the attempt did the same in a row."""
    verdict = judge_rounds(command.count, inside_of(task).nudges, limits)
    return _act_on_verdict(task, verdict, f"{command.about}, {command.count} times in a row", now, limits)


def read_nudges(task: Task, command: c.HearNudges, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Close all unread nudges."""
    unread = (message for message in seen.messages if message.message_type == "nudge")
    return Decision(closed=tuple(Closing(message.id, "consumed") for message in unread))


def _act_on_verdict(
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
            return _nudge_agent(task, about, deadline, now)
        case _:
            return Decision(facts=(f.TaskHeartbeat(progress_by=deadline, note=note),))


def _nudge_agent(task: Task, about: str, deadline: int, now: int) -> Decision:
    """Send the agent a message, which it can read with `ctx.nudges()`."""
    number = inside_of(task).nudges + 1
    text = f"You seem to go round in circles: {about}. Do something else, ask for help, or give up."
    content = msgspec.json.encode({"about": about, "message": text})
    card_id = nudge_id(task.id, number)
    digest = fingerprint(content)
    card = Card(task.namespace, card_id, task.id, "nudge", content, digest, now)
    payload = packed_report(Report("nudge", {"code": REASON, "message": text}))
    message = pending_message(task, card_id, "nudge", card_id, now, card_id=card_id, payload=payload)
    nudged = f.TaskNudged(
        about=about, message_id=message.id, nudges=number, progress_by=deadline, card_hash=digest
    )
    return Decision(facts=(nudged,), cards=(card,), messages=(message,))
