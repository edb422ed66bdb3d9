"""Makes docs/lifecycle.md from the machine's tables: `python -m tests.machine.lifecycle`.

`TRANSITIONS` is needed by this page only. The walk over every state of a small world checks it against the
machine: no arrow is missing, and none is made up.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Final

from endwell.machine import endings
from endwell.machine.clocks import RULES
from endwell.machine.table import HOLDER, TABLE, CommandRule
from endwell.model import status as s
from endwell.model.facts import BY_TYPE
from endwell.model.moments import SECOND
from endwell.model.status import Status
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryAt, RetryPolicy, after_failure

# from, to, and the commands and clock rules that lead there
TRANSITIONS: Final[tuple[tuple[Status, Status, tuple[str, ...]], ...]] = (
    (s.WAITING_APPROVAL, s.QUEUED, ("Approve",)),
    (s.WAITING_APPROVAL, s.FAILED, ("Reject",)),
    (s.WAITING_APPROVAL, s.TIMEOUT, ("approval_expire",)),
    (s.QUEUED, s.WAITING_APPROVAL, ("Dispatch", "Claim")),
    (s.QUEUED, s.DISPATCHED, ("Dispatch",)),
    (s.QUEUED, s.RUNNING, ("Claim",)),
    (s.DISPATCHED, s.RUNNING, ("Claim",)),
    (s.DISPATCHED, s.QUEUED, ("dispatch_timeout",)),
    (s.DISPATCHED, s.BLOCKED, ("dispatch_timeout",)),
    (s.RUNNING, s.SUCCEEDED, ("Finish",)),
    (s.RUNNING, s.SUSPENDED, ("Suspend",)),
    (s.RUNNING, s.QUEUED, ("FailTurn", "HandBack", "Reclaim", "Suspend", "reap")),
    (s.RUNNING, s.FAILED, ("FailTurn", "Repeat", "Progress", "reap")),
    (s.RUNNING, s.TIMEOUT, ("FailTurn",)),
    (s.SUSPENDED, s.QUEUED, ("Answer", "Signal", "Deliver", "Approve", "Reject")),
    (s.SUSPENDED, s.QUEUED, ("InjectTimeout", "inject_timeout", "suspend_cap")),
    (s.SUSPENDED, s.TIMEOUT, ("suspend_cap",)),
    (s.BLOCKED, s.QUEUED, ("RunNow", "Unblock", "SettleEffect", "recover")),
    (s.BLOCKED, s.WAITING_APPROVAL, ("RunNow", "Unblock", "recover")),
    *((status, s.BLOCKED, ("Block",)) for status in s.LIVE if status != s.BLOCKED),
    *((status, s.FAILED, ("guard",)) for status in s.LIVE if status != s.WAITING_APPROVAL),
    *((status, s.TIMEOUT, ("ends_by",)) for status in s.LIVE),
    *((status, s.CANCELLED, ("Cancel", "Disown")) for status in s.LIVE),
)


def lifecycle_page() -> str:
    """The page as Markdown."""
    parts = (_opening(), _statuses(), _diagram(), _clocks(), _commands(), _endings(), _retries(), _facts())
    return "\n\n".join(parts) + "\n"


def _opening() -> str:
    return """\
# The life of a task

<!-- Made by `make docs` from the tables in src/endwell/machine; change those, not this page. -->

A task is submitted, carried out in one or more turns, and ends exactly once. A *turn* is one assignment of
the task to its agent; an *attempt* is one worker's hold on a turn. Everything that happens to a task is
a command that the machine answers with facts, or refuses. As long as a task lives it has a clock: the
earliest of its deadlines. The clocks alone bring it to an end. Two holds stop `ends_by`, and remind a named
person: a hold that this person accepted, and a hold that protects an effect whose outcome is unknown."""


def _statuses() -> str:
    rows = ((f"`{status}`", s.MEANING[status], _deadlines_of(status)) for status in s.ALL)
    return "## Statuses\n\n" + _table(("status", "meaning", "deadlines that count"), rows)


def _deadlines_of(status: Status) -> str:
    return ", ".join(f"`{rule.deadline}`" for rule in RULES if status in rule.when) or "none: it has ended"


def _diagram() -> str:
    everywhere = _causes_everywhere()
    lines = ["stateDiagram-v2", "    state live {"]
    lines += [f"        [*] --> {status}: Submit" for status in (s.QUEUED, s.WAITING_APPROVAL)]
    lines += _arrows("        ", s.LIVE, everywhere)
    lines.append("    }")
    lines += [f"    live --> {end}: {cause}" for end, cause in everywhere]
    lines += _arrows("    ", s.TERMINAL, everywhere)
    lines += [f"    {status} --> [*]" for status in s.ALL if status in s.TERMINAL]
    drawn = "\n".join(lines)
    return f"""\
## How it moves

Names with a capital letter are commands; the others are clock rules. An arrow that leaves `live` leaves
every status in it. A queued task that a worker claims directly passes through `dispatched` in the same
commit. A turn that suspends when all its answers are there is queued again in the same commit. A blocked
task goes back to `waiting_approval` if it is not approved yet, and so does a queued task that was
submitted before its agent had a registered approval rule. `Disown` ends a child whose parent has
ended, unless its call said to leave it with its owner.

```mermaid
{drawn}
```"""


def _causes_everywhere() -> list[tuple[Status, str]]:
    """Causes that end a task in the same way from every live status: one arrow instead of six."""
    found = {(to, cause) for _, to, causes in TRANSITIONS for cause in causes if to in s.TERMINAL}
    return sorted(pair for pair in found if all(_leads(status, *pair) for status in s.LIVE))


def _leads(status: Status, to: Status, cause: str) -> bool:
    return any((status, to) == (a, b) and cause in causes for a, b, causes in TRANSITIONS)


def _arrows(indent: str, targets: Iterable[Status], everywhere: list[tuple[Status, str]]) -> list[str]:
    merged: dict[tuple[Status, Status], list[str]] = {}
    for before, after, causes in TRANSITIONS:
        own = [cause for cause in causes if (after, cause) not in everywhere]
        if after in targets and own:
            merged.setdefault((before, after), []).extend(own)
    return [
        f"{indent}{before} --> {after}: {', '.join(causes)}" for (before, after), causes in merged.items()
    ]


def _clocks() -> str:
    rows = (
        (str(number), f"`{rule.name}`", f"`{rule.deadline}`", _named(rule.when), rule.text)
        for number, rule in enumerate(RULES, 1)
    )
    return f"""\
## Clocks

When a clock fires, the rules are checked in this order, and the first one whose deadline has passed acts.
No rule moves a deadline that another rule depends on. `ends_by` is set when the task is submitted. It stands
still only while a person has accepted to hold the task (`Assign` of a blocked one), or while the hold
protects an effect whose outcome is unknown; that time is given back. `run_at`, the start of a queued task,
is not a clock: workers look for tasks that are ready.

{_table(("", "rule", "deadline", "in", "what follows"), rows)}"""


def _commands() -> str:
    return f"""\
## Commands

A command to a task in another status is refused by name. What only the holder may send is refused from any
other attempt, and the log says that it was tried. A turn in a child process may send only the commands that
are marked. The decision is shown the rows beside the task that are named here, and nothing else.

{_table(("command", "what it asks", "in", "sent by", "shown", "child"), map(_command_row, TABLE.values()))}"""


def _command_row(rule: CommandRule) -> tuple[str, ...]:
    sender = "the holder" if rule.by == HOLDER else "anyone"
    shown = ", ".join(read.replace("_", " ") for read in rule.reads)
    allowed = "any, also none yet" if rule.creates_task else _named(rule.when)
    name = f"`{rule.command.__name__}`"
    return (name, _first_line(rule.command), allowed, sender, shown, "yes" if rule.from_child else "")


def _endings() -> str:
    lines = inspect.cleandoc(endings.__doc__ or "").split("\n")
    table = "\n".join(line for line in lines if line[:1] == "|")
    after = "\n".join(lines[lines.index("", 2) + 1 :])
    return f"""\
## How turns and tasks end

The end of a task is one commit: the end of its turn, the terminal fact, the deliverable card (the
result, or a report of what went wrong) and, where the table says so, the dead letter. A failed turn
that may be tried again ends alone, and the task is queued for its next one.

{table}

{after}"""


def _retries() -> str:
    policy, limits = RetryPolicy(), Limits()
    rows = [_after_failure(policy, failures) for failures in range(policy.max_retries + 1)]
    return f"""\
## Counters

`retry_count` rises by one with each turn that fails; the task is given up when it is greater than
`max_retries`. So {policy.max_retries} retries are {policy.max_retries + 1} executions:

{_table(("failure", "retry_count", "what follows"), rows)}

`dispatch_count` rises when a turn is dispatched, or delivered again after a lost lease. It does not rise when
a suspended turn resumes, when a worker hands a turn back, or when a doorbell rings again. At
{limits.runaway_limit} the guard is set, and the next clock ends the task as `runaway_guard`.

`crash_count` is the number of leases lost within {limits.crash_window // SECOND // 60} minutes. At
{limits.crash_limit} the guard is set, and the next clock ends the task as `crash_limit`. A lost lease is
not a failed turn: the same turn goes to a new attempt."""


def _after_failure(policy: RetryPolicy, failures: int) -> tuple[str, str, str]:
    soonest, latest = (
        after_failure(policy, retry_count=failures, retryable=True, code="", now=0, fraction=fraction)
        for fraction in (0.0, 1.0)
    )
    times = " to ".join(f"{one.at / SECOND:g}" for one in (soonest, latest) if isinstance(one, RetryAt))
    then = f"tried again after {times} s" if times else "the task ends as failed, a dead letter"
    return str(failures + 1), str(soonest.retry_count), then


def _facts() -> str:
    rows = ((f"`{name}`", _first_line(kind)) for name, kind in BY_TYPE.items())
    return "## Facts\n\nWhat the log of a task may say.\n\n" + _table(("fact", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    ruled = (head, tuple("---" for _ in head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in ruled)


def _named(statuses: tuple[Status, ...]) -> str:
    groups = {frozenset(s.ALL): "any", frozenset(s.LIVE): "any live status", s.TERMINAL: "any ended status"}
    return groups.get(frozenset(statuses)) or ", ".join(f"`{name}`" for name in statuses)


def _first_line(thing: type) -> str:
    return inspect.cleandoc(thing.__doc__ or "").split("\n")[0]


if __name__ == "__main__":
    sys.stdout.write(lifecycle_page())
