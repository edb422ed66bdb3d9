"""decide(task, command, now, limits, seen) -> facts | refusal: every business rule about tasks. Pure.

Read the table at the end first: which command may reach a task in which statuses. Whatever is not
in it is refused by name. Everything a decision needs comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import astuple, replace

from endwell import errors as e
from endwell.machine import endings, repeat_guard, steps, waiting
from endwell.machine.approvals import approve, asked_before, before_first_claim, before_start, reject
from endwell.machine.clock_actions import FIRED
from endwell.machine.clocks import due
from endwell.machine.decision import NOTHING, Decision, Evidence, refuse
from endwell.machine.offers import next_turn, offered_turn
from endwell.machine.steps import progress_deadline
from endwell.machine.unblock import is_held_for, unblock, waits_for_person
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, instruction_id
from endwell.model.inside import (
    MAX_DEPTH,
    Family,
    deliveries_along,
    family_of,
    inside_of,
    lineage_of,
    origin_at,
    packed_family,
)
from endwell.model.session import END_REASONS
from endwell.model.status import Status
from endwell.model.task import Task
from endwell.policy.guard import Cost, cost_of_reclaim, count_crash, is_runaway
from endwell.policy.limits import Limits

_EVERYTHING = Evidence()
_NO_FAMILY: Final = astuple(Family())


def decide(
    task: Task | None, command: c.TaskCommand, now: int, limits: Limits, seen: Evidence = _EVERYTHING
) -> Decision:
    """What follows from the command. `now` never runs back within a task."""
    if isinstance(command, c.Submit):
        return _submit(task, command, now, limits, seen)
    if task is None:
        return refuse(e.NotFound(f"there is no task {command.task_id}", code="no_such_task"))
    allowed, handler = TABLE[type(command)]
    if task.status not in allowed:
        return _refuse_status(task, command)
    # asked of every command: they are leaves, and looking them up is quicker than `isinstance`
    if type(command) in FENCED and command.attempt_id != task.attempt_id:  # type: ignore[attr-defined]
        return _refuse_stale(task, command)  # type: ignore[arg-type]
    return handler(task, command, now if now > task.updated_at else task.updated_at, limits, seen)


def _refuse_status(task: Task, command: c.TaskCommand) -> Decision:
    if type(command) in FENCED:
        return _refuse_stale(task, command)  # type: ignore[arg-type]
    if task.is_ended:
        return refuse(e.TaskEnded(f"task {task.id} has already ended as {task.status}", task_id=task.id))
    name = type(command).__name__
    why = f"{name} does not apply to a task that is {task.status}"
    return refuse(e.WrongStatus(why, task_id=task.id, hint=f"endwell why {task.id}: what can be done now"))


def _refuse_stale(task: Task, command: c.AttemptCommand) -> Decision:
    """A late writer changes nothing, and the log says that it tried."""
    refusal = e.StaleAttempt(f"attempt {command.attempt_id} no longer holds task {task.id}", task_id=task.id)
    refused = f.WriteRefused(
        command=type(command).__name__, attempt_id=command.attempt_id, holder=task.attempt_id
    )
    return refuse(refusal, refused)


def _submit(task: Task | None, command: c.Submit, now: int, limits: Limits, seen: Evidence) -> Decision:
    if task is not None:
        return _submit_again(task, command)
    refused = _refuse_call(command)
    if refused is not None:
        return refused
    card = Card(
        command.namespace,
        instruction_id(command.task_id),
        command.task_id,
        "task.instruction",
        command.payload,
        command.payload_hash,
        now,
    )
    run_at = now + command.delay
    ends_by = run_at + (command.deadline if command.deadline is not None else limits.deadline)
    created = f.TaskCreated(
        command.agent,
        card.id,
        card.hash,
        run_at,
        ends_by if command.ends_before is None else min(ends_by, command.ends_before),
        command.owner,
        agent_key=command.agent_key,
        key=command.key,
        channel=command.channel,
        fair_key=command.fair_key,
        agent_version=command.agent_version,
        trace=command.trace,
        parent_id=command.parent_id,
        replay_of=command.replay_of,
        priority=command.priority,
        retry_policy=command.retry_policy,
        family=_family(command),
        guard_at=now if command.chain and is_runaway(command.chain + 1, limits.runaway_limit) else None,
    )
    asked = before_start(command, created, now, limits, seen.rules)
    return Decision(facts=(created, *asked), cards=(card,))


def _family(command: c.Submit) -> str | None:
    """Packed as the task keeps it; nearly all have none, which is seen before one is made."""
    parts = (
        command.parent_agent,
        command.parent_call,
        command.depth,
        command.held_keys,
        command.on_parent_end,
        command.lineage,
        command.chain,
        command.origin_at,
    )
    return None if parts == _NO_FAMILY else packed_family(Family(*parts))


def _refuse_call(command: c.Submit) -> Decision | None:
    """Chains of calls are finite, and nobody waits for a key that its own ancestor holds."""
    if command.depth > MAX_DEPTH:
        why = f"a chain of calls may be {MAX_DEPTH} deep"
        return refuse(e.BadInput(why, code="calls_too_deep", hint="do some of the work without calling on"))
    if command.agent_key is None:
        return None
    reference = f"{command.agent}/{command.agent_key}"
    if reference in command.held_keys:
        why = f"{reference} is held by a task that waits for this call: it would never start"
        return refuse(e.BadInput(why, code="key_held_by_ancestor", hint="call another key"))
    return None


def _submit_again(task: Task, command: c.Submit) -> Decision:
    """The same call of a turn that runs again finds its child, whatever it would ask for this time."""
    if command.parent_call is not None and family_of(task).parent_call == command.parent_call:
        return NOTHING
    asked = (command.agent, command.agent_key, command.payload_hash)
    if asked == (task.agent, task.agent_key, task.payload_hash):
        return NOTHING
    key = command.key or command.task_id
    return refuse(
        e.IdempotencyConflict(
            f"key {key!r} already belongs to task {task.id} with another agent or payload",
            hint="use another key, or submit exactly what was submitted before",
            field="key",
            task_id=task.id,
        )
    )


def _dispatch(task: Task, command: c.Dispatch, now: int, limits: Limits, seen: Evidence) -> Decision:
    blocker = _not_deliverable(task, now, seen) or before_first_claim(task, now, limits, seen)
    if blocker is not None:
        return blocker
    ring_at = None if limits.ring_after is None else now + limits.ring_after
    dispatch_by = None if limits.dispatch_timeout is None else now + limits.dispatch_timeout
    offered = _dispatched(task, command.slot, now, limits)
    about = {"ring_at": ring_at, "dispatch_by": dispatch_by, "is_offered": not command.is_streamed}
    return Decision(facts=(replace(offered, **about),))


def _claim(task: Task, command: c.Claim, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A queued task goes straight to running in one commit, and both events are written."""
    if not seen.session_is_live:
        return refuse(e.StaleAttempt(f"session {command.session_id} has lost its lease", task_id=task.id))
    if command.turn_id is not None and not _is_offer(task, command):
        why = f"turn {command.turn_id} of epoch {command.epoch} is not on offer any more"
        return refuse(e.WrongStatus(why, code="stale_offer", task_id=task.id))
    blocker = _refuse_unserved(task, command) or _not_deliverable(task, now, seen)
    blocker = blocker or before_first_claim(task, now, limits, seen)
    if blocker is not None:
        return blocker
    claimed = f.TaskClaimed(
        attempt_id=command.attempt_id,
        session_id=command.session_id,
        progress_by=progress_deadline(task, now, limits),
        agent_version=command.agent_version,
    )
    if task.status == s.DISPATCHED:
        return Decision(facts=(claimed,))
    return Decision(facts=(_dispatched(task, command.slot, now, limits), claimed))


def _refuse_unserved(task: Task, command: c.Claim) -> Decision | None:
    """Refuse a claim by a worker that serves neither the task's agent nor, where it counts, its version."""
    if command.agents is not None and task.agent not in command.agents:
        why = f"task {task.id} is for {task.agent}, which this worker does not serve"
        return refuse(e.WrongStatus(why, code="other_agent", task_id=task.id))
    inside = inside_of(task)
    if not inside.steps or (inside.version or "") not in command.served_elsewhere:
        return None
    why = f"version {inside.version or 'without a name'} of {task.agent} is served by another worker"
    return refuse(e.WrongStatus(why, code="other_version", task_id=task.id))


def _is_offer(task: Task, command: c.Claim) -> bool:
    """Whether the turn that a claim names is the one that can be taken now."""
    turn = offered_turn(task)
    return turn is not None and turn.key == (command.turn_id, command.epoch)


def _not_deliverable(task: Task, now: int, seen: Evidence) -> Decision | None:
    if task.run_at > now:
        return refuse(e.WrongStatus(f"task {task.id} is not to start yet", code="too_early", task_id=task.id))
    if seen.key_holder is not None and seen.key_holder != task.id:
        why = f"{task.agent}/{task.agent_key} is busy with task {seen.key_holder}"
        return refuse(e.WrongStatus(why, code="key_is_held", task_id=task.id))
    rule = due(task, now) if task.clock_at is None or task.clock_at <= now else None
    if rule is not None and rule.name in ("ends_by", "guard"):
        why = f"task {task.id} is about to be ended: {task.clock_rule}"
        return refuse(e.WrongStatus(why, code="clock_is_due", task_id=task.id))
    return None


def _dispatched(task: Task, slot: int | None, now: int, limits: Limits) -> f.TaskDispatched:
    """Resumes, and hand-backs of workers that stop, are not counted; a reclaimed turn's redelivery is.

    The guard counts on from the tasks that led to this one: a loop may make a new task each time round. One
    that would reach the limit with its first delivery is not delivered at all: it might make the next one.
    """
    is_free = task.redelivery in ("resume", "hand_back")
    count = task.dispatch_count + (0 if is_free else 1)
    along = count + deliveries_along(task) - task.dispatch_count
    turn_id, number, epoch = next_turn(task)
    return f.TaskDispatched(
        turn_id=turn_id,
        turn_number=number,
        dispatch_count=count,
        epoch=epoch,
        slot=slot,
        guard_at=now if is_runaway(along, limits.runaway_limit) else None,
    )


def _finish(task: Task, command: c.Finish, now: int, limits: Limits, seen: Evidence) -> Decision:
    return endings.succeed(task, command, now)


def _fail_turn(task: Task, command: c.FailTurn, now: int, limits: Limits, seen: Evidence) -> Decision:
    return endings.fail_turn(
        task, now, limits, command.error, fraction=command.fraction, asked_after=command.retry_after
    )


def _hand_back(task: Task, command: c.HandBack, now: int, limits: Limits, seen: Evidence) -> Decision:
    return Decision(facts=(f.TaskHandedBack(attempt_id=command.attempt_id, reason=command.reason),))


def _reclaim(task: Task, command: c.Reclaim, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Redeliver the same turn. At the crash limit only a clock is set; the PMO carries it out."""
    if command.attempt_id != task.attempt_id:
        return refuse(e.WrongStatus(f"task {task.id} is held by a newer attempt", task_id=task.id))
    if seen.session_is_live and command.reason == "lease_lapsed":
        return refuse(e.WrongStatus("the holder's lease has not lapsed", code="lease_holds", task_id=task.id))
    if _is_too_late(command, now):
        why = "the reclaim waited for the store for too long; the holder may have waited as well"
        return refuse(e.WrongStatus(why, code="decided_too_late", task_id=task.id))
    cost = _cost(command, seen)
    crashes, times = task.crash_count, task.crash_times or ""
    if cost == "crash":
        crashes, times = count_crash(task.crash_times, now, limits.crash_window)
    reclaimed = f.TaskReclaimed(
        attempt_id=command.attempt_id,
        session_id=task.session_id or "",
        by=command.actor,
        reason=command.reason,
        epoch=task.epoch + 1,
        crash_count=crashes,
        crash_times=times,
        guard_at=now if cost == "crash" and crashes >= limits.crash_limit else None,
        cost=cost,
        old_consumer=command.old_consumer,
        new_consumer=command.new_consumer,
        message_id=command.message_id,
    )
    return Decision(facts=(reclaimed,))


def _is_too_late(command: c.Reclaim, now: int) -> bool:
    """Whether the supervisor has seen nothing of the store for too long when the store decides."""
    known = command.evidence
    if known is None or known.seen_at is None or known.longest_gap is None:
        return False
    return now - known.seen_at > known.longest_gap


def _cost(command: c.Reclaim, seen: Evidence) -> Cost:
    session, known = seen.session, command.evidence or c.HolderEvidence()
    is_alive = True if command.reason == "forgotten_by_its_worker" else known.holder_is_alive
    return cost_of_reclaim(
        is_alive=is_alive,
        watched_since=known.watched_since,
        lapsed_at=None if session is None else session.lease_until,
        has_left=session is not None and session.end_reason in END_REASONS,
    )


def _clock_fired(task: Task, command: c.ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    rule = due(task, now)
    return NOTHING if rule is None else FIRED[rule.name](task, command, now, limits, seen)


def _cancel(task: Task, command: c.Cancel, now: int, limits: Limits, seen: Evidence) -> Decision:
    return endings.cancel(task, now, command.reason, command.actor)


def _run_now(task: Task, command: c.RunNow, now: int, limits: Limits, seen: Evidence) -> Decision:
    if task.status == s.BLOCKED:
        return unblock(task, now, limits, by=command.actor, run_at=now)
    return Decision(facts=(f.TaskRushed(run_at=now, by=command.actor),)) if task.run_at > now else NOTHING


def _unblock(task: Task, command: c.Unblock, now: int, limits: Limits, seen: Evidence) -> Decision:
    if command.effect_key is not None and not is_held_for(task, command.effect_key):
        why = f"task {task.id} is not held for the effect {command.effect_key!r}"
        return refuse(e.WrongStatus(why, task_id=task.id))
    return unblock(task, now, limits, by=command.actor, run_at=now)


def _assign(task: Task, command: c.Assign, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A blocked task that is assigned is held by that person: from then on `ends_by` stands still."""
    assigned = f.TaskAssigned(owner=command.owner, by=command.actor, accepts_hold=waits_for_person(task))
    return Decision(facts=(assigned,))


def _block(task: Task, command: c.Block, now: int, limits: Limits, seen: Evidence) -> Decision:
    if command.attempt_id is not None and command.attempt_id != task.attempt_id:
        why = f"attempt {command.attempt_id} no longer holds task {task.id}"
        return refuse(e.StaleAttempt(why, task_id=task.id))
    if command.effect_key is not None and seen.effect is not None and seen.effect.is_settled:
        why = f"the effect {command.effect_key!r} is already {seen.effect.status}"
        return refuse(e.WrongStatus(why, code="effect_settled", task_id=task.id))
    if command.cooldown is not None:
        return Decision(facts=(f.TaskBlocked(reason=command.reason, recover_at=now + command.cooldown),))
    owner = command.owner or task.owner or limits.owner
    remind_at = now + limits.remind_every
    held = f.TaskBlocked(
        reason=command.reason,
        owner=owner,
        remind_at=remind_at,
        effect_key=command.effect_key,
        is_unaccepted=command.effect_key is None,
    )
    return Decision(facts=(held,))


def _replay(task: Task, command: c.Replay, now: int, limits: Limits, seen: Evidence) -> Decision:
    if task.status == s.SUCCEEDED:
        why = f"task {task.id} succeeded; there is nothing to try again"
        return refuse(e.WrongStatus(why, code="already_succeeded", task_id=task.id))
    if task.superseded_by is not None or task.dead_letter == "abandoned":
        state = (task.superseded_by and f"replayed as {task.superseded_by}") or "abandoned"
        return refuse(
            e.WrongStatus(f"task {task.id} was already {state}", code="dead_letter_closed", task_id=task.id)
        )
    new = c.Resubmit(
        command_id=f"{command.command_id}.new",
        namespace=task.namespace,
        actor=command.actor,
        causation_id=command.command_id,
        task_id=command.new_task_id,
        agent=task.agent,
        payload=command.payload,
        payload_hash=command.payload_hash,
        agent_key=task.agent_key,
        channel=task.channel,
        fair_key=task.fair_key,
        agent_version=task.agent_version,
        trace=task.trace,
        replay_of=task.id,
        lineage=lineage_of(task),
        priority=task.priority,
        retry_policy=task.retry_policy,
        deadline=command.deadline,
        owner=task.owner,
        chain=family_of(task).chain,
        origin_at=origin_at(task),
        **asked_before(task, seen),
    )
    replayed = f.DeadLetterReplayed(superseded_by=command.new_task_id, by=command.actor)
    return Decision(facts=(replayed,), spawn=new)


def _abandon(task: Task, command: c.Abandon, now: int, limits: Limits, seen: Evidence) -> Decision:
    if task.dead_letter != "open":
        why = f"task {task.id} is not an open dead letter"
        return refuse(e.WrongStatus(why, code="dead_letter_closed", task_id=task.id))
    return Decision(facts=(f.DeadLetterAbandoned(by=command.actor, note=command.note),))


def _disown(task: Task, command: c.Disown, now: int, limits: Limits, seen: Evidence) -> Decision:
    """What the call said is to become of the child when its parent ends."""
    if task.parent_id != command.parent_id:
        return NOTHING
    if family_of(task).on_parent_end == "cancel":
        return endings.cancel(task, now, "parent_ended", command.actor)
    owner = task.owner or command.owner or limits.owner
    return Decision(facts=(f.TaskOrphaned(parent_id=command.parent_id, owner=owner),))


_Handler = Callable[[Task, Any, int, Limits, Evidence], Decision]
_ENDED: Final[tuple[Status, ...]] = (s.SUCCEEDED, s.FAILED, s.TIMEOUT, s.CANCELLED)

# commands that only the task's current attempt may give
FENCED: Final = frozenset(
    (
        c.Progress,
        c.Repeat,
        c.HearNudges,
        c.StartStep,
        c.RecordStep,
        c.IntendEffect,
        c.FinishEffect,
        c.DoubtEffect,
        c.KeepDraft,
        c.Finish,
        c.FailTurn,
        c.HandBack,
        c.Suspend,
    )
)

TABLE: Final[dict[type[c.Command], tuple[tuple[Status, ...], _Handler]]] = {
    c.Approve: ((s.WAITING_APPROVAL, s.SUSPENDED), approve),
    c.Reject: ((s.WAITING_APPROVAL, s.SUSPENDED), reject),
    c.Dispatch: ((s.QUEUED,), _dispatch),
    c.Claim: ((s.QUEUED, s.DISPATCHED), _claim),
    c.Progress: ((s.RUNNING,), repeat_guard.progress),
    c.Repeat: ((s.RUNNING,), repeat_guard.repeat),
    c.HearNudges: ((s.RUNNING,), repeat_guard.hear),
    c.StartStep: ((s.RUNNING,), steps.start_step),
    c.RecordStep: ((s.RUNNING,), steps.record_step),
    c.IntendEffect: ((s.RUNNING,), steps.intend_effect),
    c.FinishEffect: ((s.RUNNING,), steps.finish_effect),
    c.DoubtEffect: ((s.RUNNING,), steps.doubt_effect),
    c.SettleEffect: (s.ALL, steps.settle_effect),
    c.KeepDraft: ((s.RUNNING,), steps.keep_draft),
    c.Finish: ((s.RUNNING,), _finish),
    c.FailTurn: ((s.RUNNING,), _fail_turn),
    c.HandBack: ((s.RUNNING,), _hand_back),
    c.Suspend: ((s.RUNNING,), waiting.suspend),
    c.Reclaim: ((s.RUNNING,), _reclaim),
    c.Answer: (s.ALL, waiting.answer),
    c.Signal: (s.ALL, waiting.signal),
    c.Deliver: (s.ALL, waiting.deliver),
    c.SkipMessage: (s.ALL, waiting.skip),
    c.InjectTimeout: ((s.SUSPENDED,), waiting.inject),
    c.Disown: (s.LIVE, _disown),
    c.RunNow: ((s.QUEUED, s.BLOCKED), _run_now),
    c.Unblock: ((s.BLOCKED,), _unblock),
    c.Assign: (s.LIVE, _assign),
    c.ClockFired: (s.LIVE, _clock_fired),
    c.Block: ((s.WAITING_APPROVAL, s.QUEUED, s.DISPATCHED, s.RUNNING, s.SUSPENDED), _block),
    c.Cancel: (s.LIVE, _cancel),
    c.Replay: (_ENDED, _replay),
    c.Abandon: (_ENDED, _abandon),
}
