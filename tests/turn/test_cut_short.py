"""Which errors say that a function's call was cut short: then it may still be carried out elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess

import pytest

from endwell.errors import StepTimeout
from endwell.turn.function_calls import has_ended_by_itself


class AioRpcError(Exception):
    """As the error of gRPC: only its text says what happened."""

    def __str__(self) -> str:
        return "<AioRpcError of RPC that terminated with: status = StatusCode.DEADLINE_EXCEEDED>"


class DeadlineExceeded(Exception): ...


class ReadTimeout(ConnectionError): ...


def caused(by: BaseException) -> Exception:
    """An error that was raised while another one was handled."""
    error = RuntimeError("no answer")
    error.__context__ = by
    error.__suppress_context__ = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        StepTimeout("late"),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        subprocess.TimeoutExpired("pay", 3),
        ReadTimeout(),
        DeadlineExceeded(),
        AioRpcError(),
        OSError("The read operation timed out"),
        RuntimeError("Server error '504 Gateway Timeout'"),
        caused(TimeoutError()),
        caused(caused(ReadTimeout())),
        ExceptionGroup("both", [ValueError(), TimeoutError()]),
    ],
    ids=repr,
)
def test_a_call_that_ended_with_a_timeout_or_a_cancellation_was_cut_short(error: BaseException) -> None:
    assert not has_ended_by_itself(error)


@pytest.mark.parametrize(
    "error",
    [ValueError("no such customer"), ConnectionRefusedError(), caused(KeyError("amount"))],
    ids=repr,
)
def test_a_call_that_raised_anything_else_has_ended_by_itself(error: BaseException) -> None:
    assert has_ended_by_itself(error)
