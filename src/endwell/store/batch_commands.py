"""Commands about no task, or about several at once: their rows, and the functions that carry them out.

`BATCH_TABLE` at the end is for them what `machine/table.py` is for commands to one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from endwell.errors import NotFound, Refused
from endwell.machine import cursors, sessions
from endwell.machine.decision import Closing, Decision
from endwell.machine.table import SESSION, START
from endwell.model import commands as c
from endwell.model import status as s
from endwell.model.cursor import Cursor
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.policy.guard import is_suspect
from endwell.store.batch import Batch
from endwell.store.command_rows import ADOPTED, CHILDREN, CURSOR, HELD, LOST, READY, REPORTED, TASK
from endwell.store.log import Event, is_continued
from endwell.store.rows import Offer, Reply


def claim_next(batch: Batch, command: c.ClaimNext) -> Reply:
    """Claim ready tasks for a live session; of tasks that crashed their workers at most one."""
    if not sessions.is_live(batch.work.session(command.namespace, command.session_id), batch.now):
        return Reply(refusal=NotFound(f"session {command.session_id} has ended", code="session_lost"))
    taken: list[Offer] = []
    passed_over = 0
    may_take_suspect = command.may_take_suspect
    for number, offer in enumerate(batch.rows.ready.get(command.command_id, ())):
        if len(taken) == command.limit:
            break
        suspect = is_suspect(offer.task.crash_count, batch.limits.crash_limit)
        if suspect and not may_take_suspect:
            continue
        claimed = _offer_task(batch, command, number, offer.task)
        if claimed is not None:
            taken.append(Offer(claimed, offer.payload))
            may_take_suspect = may_take_suspect and not suspect
        elif command.served_elsewhere:
            passed_over += 1
    return Reply(taken=tuple(taken), passed_over=passed_over)


def dispatch_next(batch: Batch, command: c.DispatchNext) -> Reply:
    """Offer ready tasks; of those close to their crash limit one at a time, if the command says so."""
    taken: list[Offer] = []
    suspect_out = batch.rows.suspect_out
    for number, offer in enumerate(batch.rows.ready.get(command.command_id, ())):
        suspect = is_suspect(offer.task.crash_count, batch.limits.crash_limit)
        if suspect and not (command.may_offer_suspect and not suspect_out[command.namespace]):
            continue
        offered = _offer_task(batch, command, number, offer.task)
        if offered is not None:
            taken.append(Offer(offered, offer.payload))
            if suspect:
                suspect_out[command.namespace] = True
        if len(taken) == command.limit:
            break
    return Reply(taken=tuple(taken))


def _offer_task(
    batch: Batch, command: c.ClaimNext | c.DispatchNext, number: int, offered: Task
) -> Task | None:
    """Dispatch or claim a ready task, with a slot of its agent if the agent is limited.

    The session of a claim was checked once for all of its tasks.
    """
    task = batch.work.task(offered.namespace, offered.id) or offered
    slot = None
    if task.status == s.QUEUED and batch.work.is_limited(task):
        slot = batch.work.take_slot(task)
        if slot is None:
            return None
    single = _single_command(command, f"{command.command_id}.{number}", task, slot)
    reply = batch.decide_on(task, single, batch.evidence(task, single, (START,)))
    if reply.refusal is not None and slot is not None:
        batch.work.give_slot_back(task, slot)
    return reply.task if reply.refusal is None else None


def _single_command(
    command: c.ClaimNext | c.DispatchNext, command_id: str, task: Task, slot: int | None
) -> c.Claim | c.Dispatch:
    if isinstance(command, c.DispatchNext):
        return c.Dispatch(
            command_id=command_id,
            namespace=command.namespace,
            actor=command.actor,
            task_id=task.id,
            slot=slot,
            is_streamed=command.is_streamed,
        )
    return c.Claim(
        command_id=command_id,
        namespace=command.namespace,
        actor=command.actor,
        task_id=task.id,
        attempt_id=command_id,
        session_id=command.session_id,
        slot=slot,
        agent_version=command.versions.get(task.agent),
        served_elsewhere=command.served_elsewhere.get(task.agent, ()),
    )


def _derived_command(
    kind: Callable[..., Any], command: c.Command, number: int, task: Task, **fields: Any
) -> Any:
    """A command to one task that follows from a command of the batch."""
    command_id = f"{command.command_id}.{number}"
    about = {"command_id": command_id, "namespace": command.namespace, "actor": command.actor}
    return kind(**about, task_id=task.id, **fields)


def settle_children(batch: Batch, command: c.SettleChildren) -> Reply:
    """Cancel or disown each live child, and close the message that asked for it."""
    follow: list[c.Command] = []
    for number, child in enumerate(batch.work.children(command.namespace, command.parent_id)):
        about = {"causation_id": command.causation_id, "parent_id": command.parent_id}
        follow += batch.decide(child, _derived_command(c.Disown, command, number, child, **about)).follow
    batch.work.close(command.namespace, (Closing(command.message_id, "consumed"),))
    return Reply(follow=tuple(follow))


def adopt(batch: Batch, command: c.Adopt) -> Reply:
    """Fold the events of another store as they are, if they continue the task's log."""
    task = batch.work.task(command.namespace, command.task_id)
    events = [Event(*row) for row in command.events]
    if not is_continued(task, events):
        return Reply(refusal=Refused("these events do not follow on the task's", code="chain_broken"))
    if events:
        task = batch.work.adopt(task, events, command)
    batch.work.send(Decision(cards=command.cards, messages=command.messages))
    return Reply(task=task)


def report(batch: Batch, command: c.ForeignReport) -> Reply:
    """Decide a foreign worker's report, if that worker holds the turn."""
    task = batch.work.task(command.namespace, command.report.task_id)
    session = batch.work.session(command.namespace, command.session_id)
    refusal = sessions.refuse_foreign_report(task, session, command)
    return batch.decide(task, command.report) if refusal is None else Reply(task, refusal)


def open_session(batch: Batch, command: c.OpenSession) -> Reply:
    """Open a session. The lost session of the same worker ends, and hands its turns back at no cost."""
    if command.lost is not None:
        _hand_back_held(batch, command, command.lost, "lease_lost")
        lost = batch.work.session(command.namespace, command.lost)
        if lost is not None and lost.ended_at is None:
            _save_session(batch, replace(lost, ended_at=batch.now, end_reason="lease_lost"))
    return _save_session(batch, sessions.open_session(command, batch.now))


def renew_session(batch: Batch, command: c.Heartbeat) -> Reply:
    """Renew the lease; attempts that the worker did not name twice are reclaimed."""
    key = (command.namespace, command.session_id)
    held = [t for row in batch.rows.held_by.get(key, ()) if (t := batch.work.current_task(row)).attempt_id]
    renewal = sessions.renew_lease(batch.work.session(*key), held, command, batch.now)
    if renewal.session is None:
        return Reply(refusal=NotFound(f"session {command.session_id} has ended", code="session_lost"))
    for number, task in enumerate(renewal.forgotten):
        about = {"attempt_id": task.attempt_id or "", "session_id": command.session_id}
        reason = "forgotten_by_its_worker"
        batch.decide(task, _derived_command(c.Reclaim, command, number, task, reason=reason, **about))
    batch.work.sessions[key] = renewal.session
    return Reply(session=renewal.session, stale=renewal.stale)


def close_session(batch: Batch, command: c.CloseSession) -> Reply:
    """End a session, and hand back the turns that it holds if the command says so."""
    session = batch.work.session(command.namespace, command.session_id)
    if session is None:
        return Reply()
    if command.hands_back and session.ended_at is None:
        _hand_back_held(batch, command, command.session_id, command.reason)
    return _save_session(batch, sessions.close_session(session, command, batch.now))


def _hand_back_held(batch: Batch, command: c.Command, session_id: str, reason: str) -> None:
    for number, row in enumerate(batch.rows.held_by.get((command.namespace, session_id), ())):
        task = batch.work.current_task(row)
        if task.session_id == session_id:
            about = {"attempt_id": task.attempt_id or "", "reason": reason}
            batch.decide(task, _derived_command(c.HandBack, command, number, task, **about))


def _save_session(batch: Batch, session: Session) -> Reply:
    batch.work.sessions[session.namespace, session.id] = session
    return Reply(session=session)


def take_cursor(batch: Batch, command: c.TakeCursor) -> Reply:
    """Give a cursor to a follower of the log."""
    known = batch.work.cursor(command.namespace, command.name)
    return _save_cursor(batch, cursors.take_cursor(known, command, batch.now))


def move_cursor(batch: Batch, command: c.MoveCursor) -> Reply:
    """Move a cursor for its holder."""
    known = batch.work.cursor(command.namespace, command.name)
    return _save_cursor(batch, cursors.move_cursor(known, command, batch.now))


def _save_cursor(batch: Batch, moved: Cursor | Refused) -> Reply:
    if isinstance(moved, Refused):
        return Reply(refusal=moved)
    batch.work.cursors[moved.namespace, moved.name] = moved
    return Reply(cursor=moved)


def take_resumes(batch: Batch, command: c.TakeResumes) -> Reply:
    """Reserve messages for delivery, and count the delivery of each."""
    until = batch.now + command.lease
    for message_id in command.message_ids:
        row = (command.actor, until, batch.now, command.namespace, message_id)
        batch.work.add_row("take_resume", row)
        batch.work.add_row("count_delivery", (command.namespace, message_id))
    return Reply()


def requeue_resumes(batch: Batch, command: c.RequeueResumes) -> Reply:
    """Release messages whose delivery lease lapsed."""
    batch.work.add_row("requeue_resumes", (batch.now, command.namespace))
    return Reply()


def close_messages(batch: Batch, command: c.CloseMessages) -> Reply:
    """Close messages of the inbox."""
    closed = tuple(Closing(each, command.status, command.why) for each in command.message_ids)
    batch.work.close(command.namespace, closed)
    return Reply()


def requeue_messages(batch: Batch, command: c.RequeueMessages) -> Reply:
    """Make messages pending again whose processor died."""
    for message_id in command.message_ids:
        batch.work.add_row("requeue_message", (command.before, command.namespace, message_id))
    return Reply()


def wake_agents(batch: Batch, command: c.WakeAgents) -> Reply:
    """Ring for agents."""
    batch.work.bells |= {f"work:{command.namespace}:{agent}" for agent in command.agents}
    return Reply()


def fold_tallies(batch: Batch, command: c.FoldTallies) -> Reply:
    """Add up the counters of idle writers."""
    before = batch.now - command.idle
    batch.work.add_row("fold_tallies", (before, batch.now, command.namespace))
    batch.work.add_row("drop_tallies", (before, command.namespace))
    return Reply()


def mark_restored(batch: Batch, command: c.MarkRestored) -> Reply:
    """Note when the namespace was restored."""
    batch.work.add_row("mark_restored", (command.namespace, batch.now, command.actor))
    return Reply()


def register_agents(batch: Batch, command: c.RegisterAgents) -> Reply:
    """Write the agents; the approval rules of a live worker replace those of sessions that have ended."""
    work, now = batch.work, batch.now
    work.agents.extend((command.namespace, now, spec) for spec in command.agents)
    if command.drops_expired:
        work.add_row("drop_expired_agents", (now, command.namespace))
    for spec in command.agents if command.session_id else ():
        work.add_row("drop_rules", (now, command.namespace, spec.name, command.session_id))
    for agent, rule in command.rules:
        work.add_row("add_rule", (command.namespace, agent, command.session_id, rule, now))
    return Reply()


class BatchRule(NamedTuple):
    """How one command is carried out, on which rows."""

    then: Callable[[Batch, Any], Reply]
    reads: tuple[str, ...] = ()


BATCH_TABLE: Final[dict[type[c.Command], BatchRule]] = {
    # several tasks
    c.ClaimNext: BatchRule(claim_next, (SESSION, READY)),
    c.DispatchNext: BatchRule(dispatch_next, (READY,)),
    c.SettleChildren: BatchRule(settle_children, (CHILDREN,)),
    c.Adopt: BatchRule(adopt, (TASK, ADOPTED)),
    c.ForeignReport: BatchRule(report, (REPORTED, SESSION)),
    # sessions and agents
    c.OpenSession: BatchRule(open_session, (LOST,)),
    c.Heartbeat: BatchRule(renew_session, (SESSION, HELD)),
    c.CloseSession: BatchRule(close_session, (SESSION, HELD)),
    c.RegisterAgents: BatchRule(register_agents),
    c.WakeAgents: BatchRule(wake_agents),
    # messages of the inbox
    c.TakeResumes: BatchRule(take_resumes),
    c.RequeueResumes: BatchRule(requeue_resumes),
    c.CloseMessages: BatchRule(close_messages),
    c.RequeueMessages: BatchRule(requeue_messages),
    # the log
    c.TakeCursor: BatchRule(take_cursor, (CURSOR,)),
    c.MoveCursor: BatchRule(move_cursor, (CURSOR,)),
    c.FoldTallies: BatchRule(fold_tallies),
    c.MarkRestored: BatchRule(mark_restored),
}
