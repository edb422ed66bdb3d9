"""Tests of the portal: blocking calls into an event loop of its own always return."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading

import pytest

from endwell.errors import UsageError
from endwell.runtime import Portal, child_process
from endwell.runtime.loops import name_of_loop, new_loop

PATIENCE = 600.0


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_call_returns_what_the_coroutine_returns() -> None:
    with Portal() as portal:
        assert portal.call(double, 21) == 42


def test_a_call_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with Portal() as portal, pytest.raises(LookupError, match="gone"):
        portal.call(fail)


def test_a_call_that_cannot_even_begin_does_not_leave_its_caller_waiting() -> None:
    with Portal() as portal:
        with pytest.raises(TypeError):
            portal.call(double)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            portal.call(lambda: 5)  # type: ignore[arg-type, return-value]


async def test_a_call_works_under_a_running_loop_as_in_a_notebook() -> None:
    with Portal() as portal:
        assert portal.call(double, 4) == 8


def test_a_call_sees_the_context_of_its_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    async def read() -> str:
        return variable.get()

    with Portal() as portal:
        assert portal.call(read) == "here"


def test_a_call_that_takes_too_long_is_cleaned_up_before_it_raises() -> None:
    cleaned: list[bool] = []

    async def linger() -> None:
        try:
            await wait_for_ever()
        finally:
            cleaned.append(True)

    with Portal() as portal:
        with pytest.raises(TimeoutError):
            portal.call(linger, timeout=0.01)
        assert cleaned == [True]


def test_a_call_from_the_portals_own_thread_is_refused() -> None:
    portal = Portal()

    async def call_again() -> None:
        portal.call(double, 1)

    async def close_from_within() -> None:
        portal.close()

    with portal:
        with pytest.raises(UsageError, match="own event loop"):
            portal.call(call_again)
        with pytest.raises(UsageError, match="own event loop"):
            portal.call(close_from_within)
        assert portal.call(double, 1) == 2


def test_a_closed_portal_refuses_calls_and_may_be_closed_again() -> None:
    portal = Portal()
    portal.close()
    portal.close()
    with pytest.raises(UsageError, match="closed"):
        portal.call(double, 1)


def test_closing_ends_calls_that_are_running() -> None:
    portal = Portal()
    started = threading.Event()
    raised: list[BaseException] = []

    async def wait() -> None:
        started.set()
        await wait_for_ever()

    def caller() -> None:
        try:
            portal.call(wait)
        except UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=caller)
    thread.start()
    assert started.wait(PATIENCE)
    portal.close()
    thread.join(PATIENCE)
    assert "closed while" in str(raised[0])


def test_many_threads_may_call_at_once() -> None:
    results: list[int] = []
    with Portal() as portal:
        threads = [
            threading.Thread(target=lambda n=n: results.append(portal.call(double, n))) for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(results) == [2 * n for n in range(20)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_exits_answers_its_caller_and_closes_the_portal() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with Portal() as portal:
        with pytest.raises(SystemExit):
            portal.call(leave)
        with pytest.raises(UsageError, match="closed"):
            portal.call(double, 1)


def test_a_forked_child_is_told_to_make_its_own() -> None:
    with Portal() as portal:
        child = os.fork()
        if child == 0:
            try:
                portal.call(double, 1)
            except UsageError:
                portal.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


INTERRUPTED = """
import asyncio, signal, threading
from endwell.runtime import Portal, child_process
signal.signal(signal.SIGINT, signal.default_int_handler)
cancelled = threading.Event()

async def interrupt():
    try:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        cancelled.set()

portal = Portal()
try:
    portal.call(interrupt)
except KeyboardInterrupt:
    print("interrupted", cancelled.wait(10), flush=True)
portal.close()
"""


def test_ctrl_c_cancels_the_coroutine_and_reaches_the_caller() -> None:
    child = child_process.start_process(
        [sys.executable, "-c", INTERRUPTED], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert child.read_line(PATIENCE) == "interrupted True"
    assert child.wait(PATIENCE) == 0
    child.close()


@pytest.mark.parametrize(("wanted", "given"), [("", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio")])
def test_the_fast_loop_is_used_where_it_is_installed_unless_it_is_declined(
    monkeypatch: pytest.MonkeyPatch, wanted: str, given: str
) -> None:
    monkeypatch.setenv("ENDWELL_EVENT_LOOP", wanted)
    assert name_of_loop() == given


def test_without_the_fast_loop_pythons_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENDWELL_EVENT_LOOP")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert name_of_loop() == "asyncio"


@pytest.mark.parametrize(("wanted", "said"), [("trio", "asyncio, uvloop"), ("uvloop", "endwell[fast]")])
def test_a_loop_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str, said: str) -> None:
    monkeypatch.setenv("ENDWELL_EVENT_LOOP", wanted)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(UsageError) as refusal:
        new_loop()
    assert said in (refusal.value.hint or "")
