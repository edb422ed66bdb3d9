"""The one door: every state change of the whole system passes here, and nowhere else.

Sans-I/O. A driver asks `wanted(commands)`, reads those rows, asks `outcome(commands, rows, now)`,
and writes what it is told in one transaction. Fencing, terminal-once, counters and the log are
enforced by what happens between the two calls, which is the pure machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from endwell.errors import NotFound, Refused
from endwell.machine import cursors
from endwell.machine.approvals import not_approved
from endwell.machine.decide import FENCED, TABLE, decide
from endwell.machine.decision import Closing, Decision, Evidence
from endwell.machine.foreign_reports import refuse_foreign_report
from endwell.machine.sessions import close_session, is_live, open_session, renew
from endwell.model import commands as c
from endwell.model import status as s
from endwell.model.commands import MarkRestored
from endwell.model.cursor import Cursor
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.policy.guard import is_suspect
from endwell.policy.limits import Limits
from endwell.store.derived import (
    disown_command,
    follow_ups,
    hand_back_command,
    reclaim_command,
    single_command,
    wrapped_error,
)
from endwell.store.log import Event, effect_keys, is_continued
from endwell.store.rows import Offer, Outcome, Reply, Rows, Wanted
from endwell.store.working_set import WorkingSet

_OfEffect = c.IntendEffect | c.FinishEffect | c.DoubtEffect | c.SettleEffect


def wanted(commands: Sequence[c.Command], *, careful: bool = False) -> Wanted:
    """The rows that these commands are about.

    A submission brings a new id, so nothing has to be read for it; `careful` looks nevertheless, after
    the database has said that the id is taken: the same command was sent twice.
    """
    want = Wanted()
    for command in commands:
        if type(command) in _HOLDERS_OWN:
            _want_task(want, command, command.attempt_id)  # type: ignore[arg-type, attr-defined]
            continue
        match command:
            case c.Submit():
                want.rules.add((command.namespace, command.agent))
                if command.key is not None:
                    want.keys.add((command.namespace, command.key))
                elif careful:
                    _want_task(want, command, None)
            case c.Claim() | c.Reclaim():
                _want_task(want, command, None)
                if isinstance(command, c.Claim):
                    want.starts.add((command.namespace, command.task_id))
                want.sessions.add((command.namespace, command.session_id))
            case c.SettleChildren():
                want.children.add((command.namespace, command.parent_id))
            case c.TaskCommand():
                _want_task(want, command, command.attempt_id if type(command) in FENCED else None)  # type: ignore[attr-defined]
                _want_beside(want, command)
            case c.ClaimNext():
                want.sessions.add((command.namespace, command.session_id))
                want.ready.append(command)
            case c.DispatchNext():
                want.ready.append(command)
            case c.Heartbeat() | c.CloseSession() | c.OpenSession():
                _want_session(want, command)
            case c.ForeignReport():
                _want_task(want, command.report, None)
                want.sessions.add((command.namespace, command.session_id))
            case c.TakeCursor() | c.MoveCursor():
                want.cursors.add((command.namespace, command.name))
    return want


# by far the most commands: a holder says something of its own task, and nothing else is looked at
_HOLDERS_OWN: Final = frozenset((c.RecordStep, c.Finish, c.FailTurn, c.Progress, c.StartStep, c.KeepDraft))


def _want_task(want: Wanted, command: c.TaskCommand, attempt: str | None) -> None:
    key = (command.namespace, command.task_id)
    want.tasks.add(key)
    if want.attempts.setdefault(key, attempt) != attempt:
        want.attempts[key] = None


def _want_session(want: Wanted, command: c.Heartbeat | c.CloseSession | c.OpenSession) -> None:
    """The session, and the turns that it holds if they may be handed back; of a new one, the one it lost."""
    session_id = command.lost if isinstance(command, c.OpenSession) else command.session_id
    if session_id is None:
        return
    want.sessions.add((command.namespace, session_id))
    if not isinstance(command, c.CloseSession) or command.hands_back:
        want.held_by.add((command.namespace, session_id))


def _want_beside(want: Wanted, command: c.TaskCommand) -> None:
    """What a decision looks at beside the task."""
    match command:
        case c.IntendEffect() | c.FinishEffect() | c.DoubtEffect() | c.SettleEffect():
            want.effects.add((command.namespace, command.key))
        case c.Block(effect_key=str(key)):
            want.effects.add((command.namespace, key))
        case c.Suspend() | c.HearNudges():
            want.inbox.add((command.namespace, command.task_id))
        case c.Deliver() | c.SkipMessage():
            want.messages[command.namespace, command.message_id] = (command.namespace, command.task_id)
        case c.Answer(tool_call_id=call) | c.Approve(approval_id=str(call)) | c.Reject(approval_id=str(call)):
            want.answers.add(((command.namespace, command.task_id), call))
        case c.Signal():
            want.signals.append(((command.namespace, command.task_id), command.name))
        case c.InjectTimeout() | c.ClockFired():
            want.calls.add((command.namespace, command.task_id))
        case c.Replay():
            want.replays.add((command.namespace, command.task_id))
        case c.Adopt():
            want.effects |= {(command.namespace, key) for key in effect_keys(command.events)}


def outcome(commands: Sequence[c.Command], rows: Rows, now: int, limits: Limits) -> Outcome:
    """Decide every command in turn, each seeing what the ones before it did. One bad one fails alone."""
    batch = _Batch(rows, now, limits)
    replies = [batch.reply(command) for command in commands]
    return Outcome(replies, batch.work.writes(), batch.work.bells)


class _Batch:
    """The commands of one transaction, decided one after another."""

    def __init__(self, rows: Rows, now: int, limits: Limits) -> None:
        self.rows = rows
        self.now = now
        self.limits = limits
        self.work = WorkingSet(rows, now)

    def reply(self, command: c.Command) -> Reply:
        try:
            return self._apply(command)
        except Exception as error:  # a defect in one command must not take its neighbours with it
            return Reply(refusal=wrapped_error(error))

    def _apply(self, command: c.Command) -> Reply:
        if type(command) in TABLE:  # by far the most; looking it up is quicker than trying the cases
            return self._task_command(command)  # type: ignore[arg-type]
        match command:
            case c.Submit():
                return self._submit(command)
            case c.Adopt():
                return self._adopt(command)
            case c.ClaimNext():
                return self._claim_next(command)
            case c.DispatchNext():
                return self._dispatch_next(command)
            case c.SettleChildren():
                return self._settle_children(command)
            case c.TakeResumes() | c.RequeueResumes() | c.CloseMessages() | c.RequeueMessages():
                return self._mark_messages(command)
            case c.TakeCursor() | c.MoveCursor():
                return self._cursor(command)
            case c.FoldTallies():
                self.work.note("fold_tallies", (self.now - command.idle, self.now, command.namespace))
                self.work.note("drop_tallies", (self.now - command.idle, command.namespace))
                return Reply()
            case c.WakeAgents():
                self.work.bells |= {f"work:{command.namespace}:{agent}" for agent in command.agents}
                return Reply()
            case c.Heartbeat():
                return self._heartbeat(command)
            case c.OpenSession():
                return self._open_session(command)
            case c.CloseSession():
                return self._close_session(command)
            case c.ForeignReport():
                return self._foreign_report(command)
            case MarkRestored():
                self.work.note("mark_restored", (command.namespace, self.now, command.actor))
                return Reply()
            case c.RegisterAgents():
                self._register(command)
                return Reply()
        raise TypeError(f"no such command: {type(command).__name__}")

    def _register(self, command: c.RegisterAgents) -> None:
        """Rules of sessions that have gone give way to what a worker says who is there."""
        self.work.agents.extend((command.namespace, self.now, spec) for spec in command.agents)
        if command.drops_expired:
            self.work.note("drop_expired_agents", (self.now, command.namespace))
        for spec in command.agents if command.session_id else ():
            gone = (self.now, command.namespace, spec.name, command.session_id)
            self.work.note("drop_rules", gone)
        for agent, rule in command.rules:
            self.work.note("add_rule", (command.namespace, agent, command.session_id, rule, self.now))

    def _submit(self, command: c.Submit) -> Reply:
        """A task's own id is its key by default."""
        if command.key is not None:
            existing = self.work.task_by_key(command.namespace, command.key)
        else:
            existing = self.work.task(command.namespace, command.task_id)
        return self._decide(existing, command)

    def _task_command(self, command: c.TaskCommand) -> Reply:
        return self._decide(self.work.task(command.namespace, command.task_id), command)

    def _adopt(self, command: c.Adopt) -> Reply:
        """Events of another store: folded as they are, if they go on where the task is."""
        task = self.work.task(command.namespace, command.task_id)
        events = [Event(*row) for row in command.events]
        if not is_continued(task, events):
            return Reply(refusal=Refused("these events do not follow on the task's", code="chain_broken"))
        if events:
            task = self.work.adopt(task, events, command)
        self.work.send(Decision(cards=command.cards, messages=command.messages))
        return Reply(task=task)

    def _decide(self, task: Task | None, command: c.TaskCommand, seen: Evidence | None = None) -> Reply:
        if seen is None:
            look = _LOOKS.get(type(command))
            seen = _NOTHING_BESIDE if look is None else look(self, task, command)
        decision = decide(task, command, self.now, self.limits, seen)
        after = task
        if decision.facts:
            after = self.work.record(task, decision, command)
        elif decision.cards or decision.messages:
            self.work.send(decision)
        if decision.closed:
            self.work.close(command.namespace, decision.closed)
        elif type(command) is c.Deliver and command.is_counted:
            self.work.note("reset_deliveries", (command.namespace, command.message_id))
        if decision.spawn is not None:
            after = self._decide(None, decision.spawn).task
        refusal = decision.refusal
        if type(command) in _STARTS and refusal is None and after and after.status == s.WAITING_APPROVAL:
            refusal = not_approved(after)
        return Reply(
            after,
            refusal,
            task is None and bool(decision.facts),
            ledger=decision.ledger,
            follow=follow_ups(command, decision.messages) if decision.messages else (),
        )

    def _seen_offered(self, task: Task | None, command: c.Dispatch | c.Claim) -> Evidence:
        holder = None if task is None else self.work.key_holder(task)
        beside = self._before_start(task)
        return _NOTHING_BESIDE if holder is None and not beside else Evidence(key_holder=holder, **beside)

    def _before_start(self, task: Task | None) -> dict[str, Any]:
        """The rules for a task that has never run, and what was asked about it."""
        if task is None or task.started_at is not None:
            return {}
        rules = self.work.rules(task.namespace, task.agent)
        return {"rules": rules, "approval": self.work.approval(task.namespace, task.id)} if rules else {}

    def _seen_held(self, task: Task | None, command: c.Claim | c.Reclaim) -> Evidence:
        session = self.work.session(command.namespace, command.session_id)
        holder = None if task is None else self.work.key_holder(task)
        beside = self._before_start(task)
        if holder is None and not beside and is_live(session, self.now):
            return _NOTHING_BESIDE
        return Evidence(
            session_is_live=is_live(session, self.now), key_holder=holder, session=session, **beside
        )

    def _seen_effect(self, task: Task | None, command: _OfEffect) -> Evidence:
        effect = self.work.effect(command.namespace, command.key)
        return Evidence(effect=effect, restored_at=self.rows.restored_at.get(command.namespace))

    def _seen_open(self, task: Task | None, command: c.Block) -> Evidence:
        key = command.effect_key
        return _NOTHING_BESIDE if key is None else Evidence(effect=self.work.effect(command.namespace, key))

    def _seen_messages(self, task: Task | None, command: c.TaskCommand) -> Evidence:
        return Evidence(messages=self.work.messages(command.namespace, command.task_id))

    def _seen_message(self, task: Task | None, command: c.Deliver | c.SkipMessage) -> Evidence:
        message = self.work.message(command)
        if message is None:
            return _NOTHING_BESIDE
        return Evidence(messages=(message,), waits=self.work.waits.shown(task, command, message))

    def _seen_wait(self, task: Task | None, command: c.TaskCommand) -> Evidence:
        waits = self.work.waits.shown(task, command, None)
        return Evidence(waits=waits) if waits else _NOTHING_BESIDE

    def _seen_calls(self, task: Task | None, command: c.TaskCommand) -> Evidence:
        seen = Evidence(calls=self.work.calls(command.namespace, command.task_id))
        return self.work.waits.next_ones(task, seen)

    def _seen_rules(self, task: Task | None, command: c.Submit) -> Evidence:
        rules = self.work.rules(command.namespace, command.agent)
        return Evidence(rules=rules) if rules else _NOTHING_BESIDE

    def _seen_asked(self, task: Task | None, command: c.Replay) -> Evidence:
        """What was asked about the task, and what would be asked now."""
        rules = () if task is None else self.work.rules(task.namespace, task.agent)
        return Evidence(rules=rules, approval=self.work.approval(command.namespace, command.task_id))

    def _settle_children(self, command: c.SettleChildren) -> Reply:
        follow: list[c.Command] = []
        for number, child in enumerate(self.work.children(command.namespace, command.parent_id)):
            follow += self._decide(child, disown_command(command, number, child)).follow
        self.work.close(command.namespace, (Closing(command.message_id, "consumed"),))
        return Reply(follow=tuple(follow))

    def _mark_messages(
        self, command: c.TakeResumes | c.RequeueResumes | c.CloseMessages | c.RequeueMessages
    ) -> Reply:
        """Marks that are not folded: who is busy handing an answer on, what nobody can consume."""
        match command:
            case c.TakeResumes():
                until = self.now + command.lease
                for message_id in command.message_ids:
                    row = (command.actor, until, self.now, command.namespace, message_id)
                    self.work.note("take_resume", row)
                    self.work.note("count_delivery", (command.namespace, message_id))
            case c.RequeueResumes():
                self.work.note("requeue_resumes", (self.now, command.namespace))
            case c.CloseMessages():
                closed = tuple(Closing(each, command.status, command.why) for each in command.message_ids)
                self.work.close(command.namespace, closed)
            case c.RequeueMessages():
                for message_id in command.message_ids:
                    self.work.note("requeue_message", (command.before, command.namespace, message_id))
        return Reply()

    def _claim_next(self, command: c.ClaimNext) -> Reply:
        if not is_live(self.work.session(command.namespace, command.session_id), self.now):
            return Reply(refusal=NotFound(f"session {command.session_id} has ended", code="session_lost"))
        taken: list[Offer] = []
        passed_over = 0
        suspects_left = int(command.may_take_suspect)
        for number, offer in enumerate(self.rows.ready.get(command.command_id, ())):
            suspect = is_suspect(offer.task.crash_count, self.limits.crash_limit)
            if len(taken) == command.limit:
                break
            if suspect and not suspects_left:
                continue
            claimed = self._take(command, f"{command.command_id}.{number}", offer.task)
            if claimed is not None:
                taken.append(Offer(claimed, offer.payload))
                suspects_left -= suspect
            elif command.served_elsewhere:
                passed_over += 1
        return Reply(taken=tuple(taken), passed_over=passed_over)

    def _dispatch_next(self, command: c.DispatchNext) -> Reply:
        taken: list[Offer] = []
        for number, offer in enumerate(self.rows.ready.get(command.command_id, ())):
            is_left = is_suspect(offer.task.crash_count, self.limits.crash_limit)
            if is_left and not command.may_offer_suspect:
                continue  # workers take these one at a time by themselves; waiting must not burn a timeout
            offered = self._take(command, f"{command.command_id}.{number}", offer.task)
            if offered is not None:
                taken.append(Offer(offered, offer.payload))
            if len(taken) == command.limit:
                break
        return Reply(taken=tuple(taken))

    def _take(self, command: c.ClaimNext | c.DispatchNext, command_id: str, offered: Task) -> Task | None:
        """One of the offered tasks, with a slot of its agent if that has a limit.

        Whether the session lives was asked for all of them; what is left to look at is who holds the key.
        """
        task = self.work.task(offered.namespace, offered.id) or offered
        slot = None
        if task.status == s.QUEUED and self.work.is_limited(task):
            slot = self.work.take_slot(task)
            if slot is None:
                return None
        single = single_command(command, command_id, task, slot)
        reply = self._decide(task, single, self._seen_offered(task, single))
        if reply.refusal is not None and slot is not None:
            self.work.give_slot_back(task, slot)
        return reply.task if reply.refusal is None else None

    def _heartbeat(self, command: c.Heartbeat) -> Reply:
        key = (command.namespace, command.session_id)
        held = [t for row in self.rows.held_by.get(key, ()) if (t := self.work.current(row)).attempt_id]
        renewal = renew(self.work.session(*key), held, command, self.now)
        if renewal.session is None:
            return Reply(refusal=NotFound(f"session {key[1]} has ended", code="session_lost"))
        for number, task in enumerate(renewal.forgotten):
            self._decide(task, reclaim_command(command, number, task))
        self.work.sessions[key] = renewal.session
        return Reply(session=renewal.session, stale=renewal.stale)

    def _open_session(self, command: c.OpenSession) -> Reply:
        """A worker that lost its lease hands back what its lost session still holds; that costs nothing."""
        if command.lost is not None:
            self._hand_back_held(command, command.lost, "lease_lost")
            lost = self.work.session(command.namespace, command.lost)
            if lost is not None and lost.ended_at is None:
                self._save(replace(lost, ended_at=self.now, end_reason="lease_lost"))
        return self._save(open_session(command, self.now))

    def _close_session(self, command: c.CloseSession) -> Reply:
        session = self.work.session(command.namespace, command.session_id)
        if session is None:
            return Reply()
        if command.hands_back and session.ended_at is None:
            self._hand_back_held(command, command.session_id, command.reason)
        return self._save(close_session(session, command, self.now))

    def _hand_back_held(self, command: c.Command, session_id: str, reason: str) -> None:
        for number, row in enumerate(self.rows.held_by.get((command.namespace, session_id), ())):
            task = self.work.current(row)
            if task.session_id == session_id:
                self._decide(task, hand_back_command(command, number, task, reason))

    def _foreign_report(self, command: c.ForeignReport) -> Reply:
        task = self.work.task(command.namespace, command.report.task_id)
        session = self.work.session(command.namespace, command.session_id)
        refusal = refuse_foreign_report(task, session, command)
        return self._decide(task, command.report) if refusal is None else Reply(task, refusal)

    def _cursor(self, command: c.TakeCursor | c.MoveCursor) -> Reply:
        known = self.work.cursor(command.namespace, command.name)
        moved = (
            cursors.take(known, command, self.now)
            if isinstance(command, c.TakeCursor)
            else cursors.move(known, command, self.now)
        )
        if not isinstance(moved, Cursor):
            return Reply(refusal=moved)
        self.work.cursors[(command.namespace, command.name)] = moved
        return Reply(cursor=moved)

    def _save(self, session: Session) -> Reply:
        self.work.sessions[(session.namespace, session.id)] = session
        return Reply(session=session)


_NOTHING_BESIDE = Evidence()
_STARTS: Final = frozenset((c.Claim, c.Dispatch))
_LOOKS: Final[dict[type[c.Command], Callable[[_Batch, Task | None, Any], Evidence]]] = {
    c.Submit: _Batch._seen_rules,
    c.Resubmit: _Batch._seen_rules,
    c.Replay: _Batch._seen_asked,
    c.Claim: _Batch._seen_held,
    c.Reclaim: _Batch._seen_held,
    c.Dispatch: _Batch._seen_offered,
    c.IntendEffect: _Batch._seen_effect,
    c.FinishEffect: _Batch._seen_effect,
    c.DoubtEffect: _Batch._seen_effect,
    c.SettleEffect: _Batch._seen_effect,
    c.Block: _Batch._seen_open,
    c.Suspend: _Batch._seen_messages,
    c.Deliver: _Batch._seen_message,
    c.SkipMessage: _Batch._seen_message,
    c.Answer: _Batch._seen_wait,
    c.Signal: _Batch._seen_wait,
    c.Approve: _Batch._seen_wait,
    c.Reject: _Batch._seen_wait,
    c.HearNudges: _Batch._seen_messages,
    c.InjectTimeout: _Batch._seen_calls,
    c.ClockFired: _Batch._seen_calls,
}
"""What a decision looks at beside the task; most look at nothing."""
