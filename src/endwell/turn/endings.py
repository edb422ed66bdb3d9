"""How an agent function ended, as one command to the door: a result, an error, nothing in between."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from types import TracebackType
from typing import Any

from endwell import errors as e
from endwell.model import content
from endwell.model.commands import (
    AttemptCommand,
    Command,
    FailTurn,
    Finish,
    HandBack,
    Submit,
    Suspend,
    TaskCommand,
)
from endwell.model.task import ErrorInfo, Task
from endwell.policy.retry import LONGEST_BACKOFF_SECONDS
from endwell.turn.agents import Agent
from endwell.turn.outside import Reported
from endwell.turn.suspension import Suspended

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 8_000
API_FAILURE = "api_failure"
"""The code of errors whose last retry ends the task as `api_retries_exhausted`."""
_ASK_LATER = (408, 429)
_SERVER_ERRORS = 500
_SECOND = 1_000_000
_ENDWELL = str(Path(e.__file__).parent) + os.sep


def finish(
    task: Task, attempt_id: str, command_id: str, actor: str, agent: Agent, value: Any, fraction: float
) -> Finish | FailTurn:
    """A result ends the task, unless it cannot be stored or is not what the agent promises."""
    try:
        result = content.encode(value, what="result")
    except Exception as refusal:  # an object may raise anything while it is looked at
        error = refused("result_not_storable", value, refusal, retryable=False)
        return _failed(task, attempt_id, command_id, actor, error, None, fraction)
    try:
        agent.check_result(result)
    except e.BadInput as refusal:
        error = refused("bad_result", value, refusal, retryable=True)
        return _failed(task, attempt_id, command_id, actor, error, None, fraction)
    return Finish(
        command_id=command_id,
        namespace=task.namespace,
        actor=actor,
        task_id=task.id,
        attempt_id=attempt_id,
        result=result,
        result_hash=content.fingerprint(result),
    )


def fail(
    task: Task,
    attempt_id: str,
    command_id: str,
    actor: str,
    agent: Agent,
    error: BaseException,
    fraction: float,
) -> FailTurn:
    """An exception ends the turn; whether another is tried is for the machine to say."""
    return _failed(task, attempt_id, command_id, actor, error_info(agent, error), _asked(error), fraction)


def suspend(
    task: Task, attempt_id: str, command_id: str, actor: str, waiting: Suspended
) -> tuple[Submit | Suspend, ...]:
    """The tasks that are called, then the turn lets go of its worker: all in one commit."""
    letting_go = Suspend(
        command_id=command_id,
        namespace=task.namespace,
        actor=actor,
        task_id=task.id,
        attempt_id=attempt_id,
        calls=waiting.calls,
    )
    return (*waiting.submits, letting_go)


def hand_back(task: Task, attempt_id: str, command_id: str, actor: str, *, reason: str = "drain") -> HandBack:
    """The turn is given to the worker that comes next."""
    return HandBack(
        command_id=command_id,
        namespace=task.namespace,
        actor=actor,
        task_id=task.id,
        attempt_id=attempt_id,
        reason=reason,
    )


def tell_refused(command: TaskCommand, refusal: e.EndwellError) -> bool:
    """Say what the store refused; whether because the attempt is stale, which is nobody's fault."""
    is_stale = isinstance(refusal, e.StaleAttempt)
    if is_stale:
        log.warning("refused as stale: %s", refusal.message, extra=ids_of(command))
    else:
        log.error("%s was refused: %s", type(command).__name__, refusal.message, extra=ids_of(command))
    return is_stale


def attempt_of(command: TaskCommand) -> str:
    """Whose word a command is."""
    return command.attempt_id if isinstance(command, AttemptCommand) else ""


def ids_of(command: Command) -> dict[str, str | None]:
    """For the log: which task and attempt a command is about."""
    return {name: getattr(command, name, None) for name in ("task_id", "attempt_id")}


def _asked(error: BaseException) -> int | None:
    """When the agent wants its retry; what makes no sense as a time leaves it to the usual backoff."""
    seconds = error.after_seconds if isinstance(error, (e.Retry, Reported)) else None
    if not isinstance(seconds, (int, float)) or seconds != seconds:  # NaN; `isnan` fails for huge integers
        return None
    return int(min(max(seconds, 0), LONGEST_BACKOFF_SECONDS) * _SECOND)


def refused(code: str, value: Any, refusal: Exception, *, retryable: bool) -> ErrorInfo:
    """Why a result cannot be taken."""
    return ErrorInfo(
        code=code,
        type=type(value).__name__,
        message=content.clean_text(content.safe_str(refusal), MESSAGE_LIMIT),
        retryable=retryable,
    )


def error_info(agent: Agent, error: BaseException) -> ErrorInfo:
    """The error as it is kept: cleaned, cut, and saying whether another try makes sense."""
    if isinstance(error, Reported):
        return error.info
    return ErrorInfo(
        code=_code(error),
        type=type(error).__name__,
        message=content.clean_text(_told(error), MESSAGE_LIMIT),
        retryable=is_retryable(error, agent.give_up_on),
        traceback=_traceback(error),
    )


def _told(error: BaseException) -> str:
    """What went wrong and, where the error knows one, the remedy: nobody sees the exception itself later."""
    if isinstance(error, MemoryError):
        return content.safe_str(error) or "there was not enough memory"
    hint = error.hint if isinstance(error, e.EndwellError) else None
    return f"{content.safe_str(error)}; {hint}" if hint else content.safe_str(error)


def is_retryable(error: BaseException, give_up_on: tuple[type[BaseException], ...]) -> bool:
    """Whether another try may go better."""
    if isinstance(error, e.TurnError) and not error.retryable:
        return False
    return not isinstance(error, (e.Fail, e.BadInput, *give_up_on))


def _code(error: BaseException) -> str:
    if isinstance(error, (e.AgentSignal, e.BadInput, e.TurnError)):
        return error.code
    return API_FAILURE if _is_api_failure(error) else "exception"


def _is_api_failure(error: BaseException) -> bool:
    """Somebody else's service did not answer, or answered that it cannot just now."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    try:
        response = getattr(error, "response", None)
        said = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    except Exception:  # an exception's attribute may raise anything
        return False
    return isinstance(said, int) and (said in _ASK_LATER or said >= _SERVER_ERRORS)


def _traceback(error: BaseException) -> str | None:
    """From the agent's own code on, and its end; formatting one must never fail the failing."""
    try:
        lines = traceback.format_exception(type(error), error, _own_part(error), limit=-20)
        return content.clean_text("".join(lines)[-TRACEBACK_LIMIT:], TRACEBACK_LIMIT)
    except Exception:
        return None


def _own_part(error: BaseException) -> TracebackType | None:
    """The traceback without the frames by which Endwell came to call the agent."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_ENDWELL):
        own = own.tb_next
    return own or error.__traceback__


def _failed(
    task: Task,
    attempt_id: str,
    command_id: str,
    actor: str,
    error: ErrorInfo,
    retry_after: int | None,
    fraction: float,
) -> FailTurn:
    return FailTurn(
        command_id=command_id,
        namespace=task.namespace,
        actor=actor,
        task_id=task.id,
        attempt_id=attempt_id,
        error=error,
        retry_after=retry_after,
        fraction=fraction,
    )


def fitting(endings: Sequence[tuple[TaskCommand, ...]], limit: int) -> list[tuple[TaskCommand, ...]]:
    """As many as fit into one commit, and at least one."""
    sizes = accumulate(len(ending) for ending in endings)
    count = sum(1 for _ in takewhile(lambda size: size <= limit, sizes))
    return list(endings[: max(count, 1)])
