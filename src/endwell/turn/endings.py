"""How a turn ends: as one of three values, and for the store as one final command.

`EndedTurn` carries what the store is to learn; `LostTurn` says that the attempt has nothing to say any more;
`SlotFreed` says that a thread of a turn that was over has ended.
"""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from endwell import errors as e
from endwell.model import content
from endwell.model.commands import FailTurn, Finish, HandBack, Submit, Suspend, TaskCommand
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo
from endwell.policy.retry import LONGEST_BACKOFF_SECONDS
from endwell.turn.agents import Agent
from endwell.turn.held_turn import HeldTurn, ReportedFailure
from endwell.turn.suspension import Suspended

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 8_000
API_FAILURE = "api_failure"
"""The code of errors whose last retry ends the task as `api_retries_exhausted`."""
_ASK_LATER = (408, 429)
_SERVER_ERRORS = 500
_ENDWELL = str(Path(e.__file__).parent) + os.sep


class EndedTurn(NamedTuple):
    """The function has ended. `commands` create the tasks that it calls, then end or suspend the turn."""

    task_id: str
    attempt_id: str
    commands: tuple[TaskCommand, ...]


class LostTurn(NamedTuple):
    """Another attempt may hold the task, or a person does: nothing is to be committed."""

    attempt_id: str


class SlotFreed(NamedTuple):
    """The last thread of a turn that was over has ended, so its slot is free."""


TurnEnd = EndedTurn | LostTurn | SlotFreed


def finish(turn: HeldTurn, agent: Agent, value: Any, fraction: float) -> Finish | FailTurn:
    """A result ends the task, unless it cannot be stored or is not of the declared type."""
    try:
        result = content.encode(value, what="result")
    except Exception as refusal:  # an object may raise anything while it is looked at
        error = refused_result("result_not_storable", value, refusal, retryable=False)
        return turn.final_command(FailTurn, error=error, fraction=fraction)
    try:
        agent.check_result(result)
    except e.BadInput as refusal:
        error = refused_result("bad_result", value, refusal, retryable=True)
        return turn.final_command(FailTurn, error=error, fraction=fraction)
    return turn.final_command(Finish, result=result, result_hash=content.fingerprint(result))


def fail(turn: HeldTurn, agent: Agent, error: BaseException, fraction: float) -> FailTurn:
    """An exception ends the turn; the machine decides whether the task is tried again."""
    return turn.final_command(
        FailTurn, error=error_info(agent, error), retry_after=_retry_after(error), fraction=fraction
    )


def suspend(turn: HeldTurn, waiting: Suspended) -> tuple[Submit | Suspend, ...]:
    """The tasks that are called, then the suspension: all in one commit."""
    return (*waiting.submits, turn.final_command(Suspend, calls=waiting.calls))


def hand_back(turn: HeldTurn, *, reason: str = "drain") -> HandBack:
    """The turn goes to the next worker that claims it."""
    return turn.final_command(HandBack, reason=reason)


def log_refusal(command: TaskCommand, refusal: e.EndwellError | None) -> bool:
    """Log a refused final command. True if its attempt was stale, which is no defect."""
    if refusal is None:
        return False
    ids = {name: getattr(command, name, None) for name in ("task_id", "attempt_id")}
    is_stale = isinstance(refusal, e.StaleAttempt)
    if is_stale:
        log.warning("refused as stale: %s", refusal.message, extra=ids)
    else:
        log.error("%s was refused: %s", type(command).__name__, refusal.message, extra=ids)
    return is_stale


def _retry_after(error: BaseException) -> int | None:
    """When the agent wants its retry, in microseconds; what is no time leaves it to the usual backoff."""
    seconds = error.after_seconds if isinstance(error, (e.Retry, ReportedFailure)) else None
    if not isinstance(seconds, (int, float)) or seconds != seconds:  # NaN; `isnan` fails for huge integers
        return None
    return int(min(max(seconds, 0), LONGEST_BACKOFF_SECONDS) * SECOND)


def refused_result(code: str, value: Any, refusal: Exception, *, retryable: bool) -> ErrorInfo:
    return ErrorInfo(
        code=code,
        type=type(value).__name__,
        message=content.clean_text(content.safe_str(refusal), MESSAGE_LIMIT),
        retryable=retryable,
    )


def error_info(agent: Agent, error: BaseException) -> ErrorInfo:
    """The error as it is kept: cleaned, cut, and saying whether another try makes sense."""
    if isinstance(error, ReportedFailure):
        return error.info
    return ErrorInfo(
        code=_error_code(error),
        type=type(error).__name__,
        message=content.clean_text(_error_message(error), MESSAGE_LIMIT),
        retryable=is_retryable(error, agent.give_up_on),
        traceback=_agent_traceback(error),
    )


def _error_message(error: BaseException) -> str:
    """What went wrong, with the error's hint: the exception itself is not kept."""
    if isinstance(error, MemoryError):
        return content.safe_str(error) or "there was not enough memory"
    hint = error.hint if isinstance(error, e.EndwellError) else None
    return f"{content.safe_str(error)}; {hint}" if hint else content.safe_str(error)


def is_retryable(error: BaseException, give_up_on: tuple[type[BaseException], ...]) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, e.TurnError) and not error.retryable:
        return False
    return not isinstance(error, (e.Fail, e.BadInput, *give_up_on))


def _error_code(error: BaseException) -> str:
    if isinstance(error, (e.AgentSignal, e.BadInput, e.TurnError)):
        return error.code
    return API_FAILURE if _is_api_failure(error) else "exception"


def _is_api_failure(error: BaseException) -> bool:
    """Whether an outside service did not answer, or answered that it cannot just now."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    try:
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    except Exception:  # an exception's attribute may raise anything
        return False
    return isinstance(status, int) and (status in _ASK_LATER or status >= _SERVER_ERRORS)


def _agent_traceback(error: BaseException) -> str | None:
    """The traceback from the agent's own code on, cut at its start; formatting must never fail the turn."""
    try:
        lines = traceback.format_exception(type(error), error, _agent_frames(error), limit=-20)
        return content.clean_text("".join(lines)[-TRACEBACK_LIMIT:], TRACEBACK_LIMIT)
    except Exception:
        return None


def _agent_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of Endwell that called the agent."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_ENDWELL):
        frames = frames.tb_next
    return frames or error.__traceback__
