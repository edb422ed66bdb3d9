"""The command table: when a command applies, who may send it, what is read for it, and what decides it.

From it follow `decide`, the rows that the door reads, the fence against stale attempts, the commands that a
child process may send, and docs/lifecycle.md. A new command needs a class, a function that decides it, a line
here, and tests. Commands about no single task are in `BATCH_TABLE` of `store/batch_commands.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from endwell.machine import (
    approvals,
    claiming,
    clocks,
    effects,
    endings,
    holds,
    repeat_guard,
    steps,
    submission,
    waiting,
)
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import status as s
from endwell.model.status import Status
from endwell.policy.limits import Limits

Sender = Literal["holder", "anyone"]
HOLDER: Final = "holder"
"""Only the attempt that holds the task; a write by any other is refused, and logged as refused."""
ANYONE: Final = "anyone"

Read = Literal[
    "agent_rules", "replayed", "start", "session", "effect", "inbox", "message", "wait", "next_waits"
]
"""What a decision is shown besides the task; `store/command_rows.py` says how each is read."""
AGENT_RULES: Final = "agent_rules"  # the approval rules for the agent of a submission
REPLAYED: Final = "replayed"  # the approval of the replayed task, and the rules that apply now
START: Final = "start"  # the task that has the agent key; for a first start also approval rules and approval
SESSION: Final = "session"  # the session that the command names
EFFECT: Final = "effect"  # the effect that the command names
INBOX: Final = "inbox"  # all pending messages of the task
MESSAGE: Final = "message"  # the message that the command names, and the wait that it answers
WAIT: Final = "wait"  # the wait that the command answers
NEXT_WAITS: Final = "next_waits"  # the next waits by deadline, and the cards of their calls

Handler = Callable[[Any, Any, int, Limits, Evidence], Decision]


class CommandRule(msgspec.Struct, frozen=True):
    """One command to a task; with `creates_task` it makes one. `from_child`: child processes may send it."""

    command: type[c.TaskCommand]
    when: tuple[Status, ...]
    then: Handler
    by: Sender = ANYONE
    reads: tuple[Read, ...] = ()
    from_child: bool = False
    creates_task: bool = False


_RUNNING: Final = (s.RUNNING,)
_ASKED: Final = (s.WAITING_APPROVAL, s.SUSPENDED)
_UNBLOCKED: Final = (s.WAITING_APPROVAL, s.QUEUED, s.DISPATCHED, s.RUNNING, s.SUSPENDED)
_ENDED: Final = (s.SUCCEEDED, s.FAILED, s.TIMEOUT, s.CANCELLED)

TABLE: Final[dict[type[c.Command], CommandRule]] = {
    rule.command: rule
    for rule in (
        # a task begins, and may be started
        CommandRule(c.Submit, s.ALL, submission.submit, reads=(AGENT_RULES,), creates_task=True),
        CommandRule(c.Resubmit, s.ALL, submission.submit, reads=(AGENT_RULES,), creates_task=True),
        CommandRule(c.Approve, _ASKED, approvals.approve, reads=(WAIT,)),
        CommandRule(c.Reject, _ASKED, approvals.reject, reads=(WAIT,)),
        # a turn reaches a worker, and comes back
        CommandRule(c.Dispatch, (s.QUEUED,), claiming.dispatch, reads=(START,)),
        CommandRule(c.Claim, (s.QUEUED, s.DISPATCHED), claiming.claim, reads=(SESSION, START)),
        CommandRule(c.HandBack, _RUNNING, claiming.hand_back, HOLDER),
        CommandRule(c.Reclaim, _RUNNING, claiming.reclaim, reads=(SESSION,)),
        # the attempt works
        CommandRule(c.Progress, _RUNNING, repeat_guard.report_progress, HOLDER, from_child=True),
        CommandRule(c.Repeat, _RUNNING, repeat_guard.report_repeat, HOLDER, from_child=True),
        CommandRule(c.HearNudges, _RUNNING, repeat_guard.read_nudges, HOLDER, (INBOX,), from_child=True),
        CommandRule(c.StartStep, _RUNNING, steps.start_step, HOLDER, from_child=True),
        CommandRule(c.RecordStep, _RUNNING, steps.record_step, HOLDER, from_child=True),
        CommandRule(c.KeepDraft, _RUNNING, steps.keep_draft, HOLDER, from_child=True),
        CommandRule(c.IntendEffect, _RUNNING, effects.intend_effect, HOLDER, (EFFECT,), from_child=True),
        CommandRule(c.FinishEffect, _RUNNING, effects.finish_effect, HOLDER, (EFFECT,), from_child=True),
        CommandRule(c.DoubtEffect, _RUNNING, effects.doubt_effect, HOLDER, (EFFECT,), from_child=True),
        CommandRule(c.SettleEffect, s.ALL, effects.settle_effect, reads=(EFFECT,), from_child=True),
        CommandRule(c.Finish, _RUNNING, endings.finish, HOLDER),
        CommandRule(c.FailTurn, _RUNNING, endings.fail_turn, HOLDER),
        # the turn waits
        CommandRule(c.Suspend, _RUNNING, waiting.suspend, HOLDER, (INBOX,)),
        CommandRule(c.Answer, s.ALL, waiting.answer, reads=(WAIT,)),
        CommandRule(c.Signal, s.ALL, waiting.signal, reads=(WAIT,)),
        CommandRule(c.Deliver, s.ALL, waiting.deliver, reads=(MESSAGE,)),
        CommandRule(c.SkipMessage, s.ALL, waiting.skip_message, reads=(MESSAGE,)),
        CommandRule(c.InjectTimeout, (s.SUSPENDED,), waiting.inject_timeouts, reads=(NEXT_WAITS,)),
        # supervisors and people
        CommandRule(c.ClockFired, s.LIVE, clocks.fire, reads=(NEXT_WAITS,)),
        CommandRule(c.Block, _UNBLOCKED, holds.block, reads=(EFFECT,), from_child=True),
        CommandRule(c.Unblock, (s.BLOCKED,), holds.unblock),
        CommandRule(c.Assign, s.LIVE, holds.assign),
        CommandRule(c.RunNow, (s.QUEUED, s.BLOCKED), holds.run_now),
        CommandRule(c.Cancel, s.LIVE, endings.cancel_task),
        CommandRule(c.Disown, s.LIVE, endings.disown),
        CommandRule(c.Replay, _ENDED, submission.replay, reads=(REPLAYED,)),
        CommandRule(c.Abandon, _ENDED, submission.abandon),
    )
}
FENCED: Final = frozenset(kind for kind, rule in TABLE.items() if rule.by == HOLDER)
"""Commands that only the task's current attempt may send."""
