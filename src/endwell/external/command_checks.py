"""Checks of a child process's commands and waits: for its own attempt and nothing else.

An honest child passes every check, because the verbs of its context made the same ones. A child that writes
to the pipe itself is refused with the code `not_of_this_turn`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from endwell.errors import Refused
from endwell.external.child_protocol import UNREADABLE, ChildTask, CommandMessage
from endwell.machine.holds import EFFECT_UNKNOWN
from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.model import content, names
from endwell.model.card import record_id
from endwell.model.moments import SECOND
from endwell.model.task import ERROR_CODE_LIMIT, ErrorInfo, clean_error
from endwell.model.wait import WaitKind
from endwell.policy.approval import checked_names, checked_quorum
from endwell.policy.submitting import LONGEST_SECONDS
from endwell.turn.effects import KEY_LIMIT
from endwell.turn.endings import MESSAGE_LIMIT, TRACEBACK_LIMIT
from endwell.turn.recorder import Recorder
from endwell.turn.waits import question_title

STEP_LIMIT: Final = 4_000
"""Most characters of a step's identity: its name, and the path of its branch."""
TEXT_LIMIT: Final = 4_000
"""Most characters of a note or a reason; the verbs cut theirs far below."""
WRAPPING_BYTES: Final = 4_096
"""How much longer than a payload a record may be: it may contain a fingerprint of its inputs."""
_LONGEST: Final = int(LONGEST_SECONDS) * SECOND
CALL_LIMIT: Final = 200
"""Most characters of an effect's call: a fingerprint and a function's name."""
MOST_DOING: Final = 100
"""Most steps of one turn that the heartbeat shows as running."""
_RESULT_TYPES: Final = ("success", "permanent_failure", "retryable_failure")

COMMANDS: Final[Mapping[str, type[c.TaskCommand]]] = {
    kind.__name__: rule.command for kind, rule in TABLE.items() if rule.from_child
}
"""The only commands that a child may hand in."""


def not_allowed(why: str) -> Refused:
    """The refusal of what a turn in a process of its own may not ask for."""
    return Refused(why, code="not_of_this_turn")


def checked_command(recorder: Recorder, message: CommandMessage) -> c.TaskCommand:
    kind = COMMANDS.get(message.type)
    if kind is None:
        raise not_allowed(f"a turn may not hand in {message.type[:ERROR_CODE_LIMIT]!r}")
    try:
        command = msgspec.json.decode(message.fields, type=kind)
    except UNREADABLE as error:
        raise not_allowed(f"this is no {message.type}: {error}") from None
    _check_attempt(recorder, command)
    for name in command.__struct_fields__:
        check = _CHECKS.get(name)
        if check is not None and not check(recorder, getattr(command, name)):
            raise not_allowed(f"{message.type} has a {name} that a turn may not hand in")
    _check_content(command)
    if isinstance(command, c.RecordStep) and command.error is not None:
        return msgspec.structs.replace(command, error=child_error(command.error))
    return command


def _check_attempt(recorder: Recorder, command: c.TaskCommand) -> None:
    task, attempt_id = recorder.task, getattr(command, "attempt_id", None)
    ours = (task.namespace, task.id, recorder.attempt_id, recorder.actor, None)
    theirs = (command.namespace, command.task_id, attempt_id, command.actor, command.causation_id)
    attempt, _, number = command.command_id.rpartition(".")
    is_numbered = (
        attempt == recorder.attempt_id and number.isascii() and number.isdigit() and len(number) < 19
    )
    if theirs != ours or not is_numbered:
        raise not_allowed("a turn may hand in commands of its own attempt only")


def _check_content(command: c.TaskCommand) -> None:
    """Check content and hash, because the log vouches for both."""
    if hasattr(command, "content") and hasattr(command, "content_hash"):
        _check_sealed(command.content, command.content_hash)


def _check_sealed(data: bytes | None, digest: str) -> None:
    """Refuse content that is not JSON, is too large, or is not what its hash says."""
    if data is None and not digest:
        return
    if data is None or len(data) > content.MAX_BYTES + WRAPPING_BYTES or content.fingerprint(data) != digest:
        raise not_allowed("a turn may hand in content with its own hash only, and of a bounded size")
    try:
        content.decode_stored(data)
    except UNREADABLE as error:
        raise not_allowed(f"this content is no JSON: {error}") from None


def _is_time(_: Recorder, value: int) -> bool:
    return 0 <= value <= _LONGEST


def _is_step(recorder: Recorder, value: Any) -> bool:
    return _is_line(value, STEP_LIMIT) and value.startswith(f"{recorder.run}:(")


def _is_key(_: Recorder, value: Any) -> bool:
    return value is None or (bool(value) and _is_line(value, KEY_LIMIT))


def _is_text(_: Recorder, value: Any) -> bool:
    return value is None or value == content.clean_text(value, TEXT_LIMIT)


def _is_line(value: str, limit: int) -> bool:
    return len(value) <= limit and value.isprintable()


_CHECKS: Final[Mapping[str, Callable[[Recorder, Any], bool]]] = {
    "about": _is_text,
    "args_hash": lambda _, value: _is_line(value, CALL_LIMIT),
    "cooldown": lambda _, value: value is None,
    "count": _is_time,
    "effect_key": lambda recorder, value: value is not None and _is_key(recorder, value),
    "key": _is_key,
    "note": _is_text,
    "owner": lambda _, value: value is None,
    "reason": _is_text,
    "result_type": lambda _, value: value in _RESULT_TYPES,
    "step": _is_step,
    "timeout": _is_time,
    "took": _is_time,
    "verdict": lambda _, value: value in ("done", "not_done"),
    "without_news": _is_time,
}
"""By the field's name: what a command of a turn may carry there."""


def check_block(command: c.Block) -> None:
    """Check a hand-over to a person: only an effect is a reason."""
    if command.reason != EFFECT_UNKNOWN:
        raise not_allowed("a turn may ask a person about an effect of its own only")


def check_call(recorder: Recorder, call: c.Call) -> None:
    """Check one call of a suspension: named after a step of this run, with the content of its kind."""
    is_own = call.tool_call_id.startswith(record_id(recorder.task.id, f"{recorder.run}:("))
    if not is_own or not _is_line(call.tool_call_id, STEP_LIMIT):
        raise not_allowed("a turn may wait for calls of its own steps only")
    if not _is_time(recorder, call.within) or not _is_text(recorder, call.name):
        raise not_allowed("a turn may wait for a bounded time only, and by a name that can be stored")
    _check_sealed(call.content, call.content_hash)
    checked_quorum(call.quorum, checked_names(call.by))
    asked = None if call.content is None else content.decode_stored(call.content)
    if not _ASKS[call.kind](call.name, asked if isinstance(asked, dict) else {}):
        raise not_allowed(f"a wait for a {call.kind} must ask for what it names")
    if call.is_child and call.kind not in ("tool", "call"):
        raise not_allowed("only tools and agents are answered by another task")


def _asks_tool(name: str, asked: Mapping[str, Any]) -> bool:
    return asked.keys() == {"tool_name", "arguments"} and asked["tool_name"] == names.tool_name(name)


def _asks_person(name: str, asked: Mapping[str, Any]) -> bool:
    return asked.keys() == {"question", "shown"} and question_title(asked["question"]) == name


_ASKS: Final[Mapping[WaitKind, Callable[[str, Mapping[str, Any]], bool]]] = {
    "tool": _asks_tool,
    "approval": _asks_person,
    "signal": lambda name, asked: not asked and bool(names.signal_name(name)),
    "call": lambda name, asked: not asked and bool(names.agent_reference(name)),
    "timer": lambda _, asked: not asked,
}
"""By the kind of a wait: whether its content fits its name, as the verbs of a context write them."""


def check_child(call: c.Call, child: ChildTask) -> None:
    """Check that the task which answers a call is for the agent or tool that the call names."""
    named = (call.name, None) if call.kind == "tool" else names.agent_reference(call.name)
    if named != (child.agent, child.agent_key):
        raise not_allowed("a call must come with a task of the agent that it names")


def child_error(info: ErrorInfo) -> ErrorInfo:
    """A child's error, cut to the limits of the worker's own."""
    return clean_error(info, message_limit=MESSAGE_LIMIT, traceback_limit=TRACEBACK_LIMIT)


def clean_doing(message: msgspec.Raw) -> dict[str, int]:
    """Which steps run, and since when; what cannot be shown is left out."""
    doing = msgspec.json.decode(message, type=dict[str, int])
    shown = ((step, since) for step, since in doing.items() if _is_line(step, STEP_LIMIT))
    return {step: since for step, since in list(shown)[:MOST_DOING] if 0 <= since <= content.MAX_INTEGER}
