"""Fuzzing decoders of other programs' output: program agents, isolated children, doorbells."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from endwell.doorbell.local import pack_topics, unpack_topics
from endwell.errors import EndwellError, NotFound
from endwell.external.isolated import ChildConversation
from endwell.external.programs import ProgramOutput
from endwell.external.runner import BadOutput
from endwell.model import commands as c
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime import Runtime
from endwell.runtime.guarded_program import ProgramEnd
from endwell.turn.held_turn import ReportedFailure
from endwell.turn.suspension import GivenBack, HandedOver, Suspended
from tests.patience import PATIENCE_SECONDS
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.mutate import one_of

_LINES: Final = (
    b'{"progress":"half way"}\n{"result":{"a":[1,2]}}',
    b'{"usage":{"tokens":12,"euros":0.5}}\n{"usage":{"tokens":3}}\n{"result":null}',
    b'{"draft":["so","far"]}\n\n{"result":"done"}',
    b'{"call":{"name":"search","arguments":[1]}}\n{"error":"none"}\n{"result":2}',
    b'{"result":1}',
)


def _said(problem: str) -> bool:
    assert 0 < len(problem) < 2_000
    return False


def _program(data: bytes) -> bool:
    output = ProgramOutput()
    try:
        for line in data.split(b"\n"):
            if line.strip():
                output.take(line)
    except BadOutput as problem:
        return _said(str(problem))
    assert isinstance(output.progress_note, str)
    return bool(output.results)


_TASK: Final = Task(namespace="n", id="t", agent="fuzzed", attempt_id="a")
_COMMAND: Final = {"command_id": "a.1", "namespace": "n", "actor": "w", "task_id": "t", "attempt_id": "a"}


def _line(**said: Any) -> bytes:
    return msgspec.json.encode(said)


def _asking(number: int, method: str, *arguments: Any) -> bytes:
    return _line(ask="store", id=number, **{"with": {"method": method, "arguments": arguments}})


_CALL: Final = c.Call(tool_call_id="t.s.1:()x#1", kind="timer", within=5)
_CONVERSATIONS: Final = (
    _line(result={"a": 1}),
    _line(doing={"step": 5}) + b"\n" + _line(result=None),
    _line(ask="lease", id=1, **{"with": {}}) + b"\n" + _line(result=1),
    _asking(1, "card", "n", "t.in") + b"\n" + _line(result=1),
    _asking(2, "commit", [{"type": "Progress", "fields": _COMMAND}]) + b"\n" + _line(result=1),
    _line(error={"code": "exception", "type": "ValueError", "message": "no"}, after=5.0),
    _line(suspended={"calls": [_CALL], "children": []}),
    _line(handed_over=True),
    _line(lost={"type": "StaleAttempt", "code": "stale_attempt", "message": "gone"}),
)


class _ScriptedChild:
    """Stands in for a child process: prints scripted lines, and drops its input."""

    error_tail = ""

    def __init__(self, data: bytes) -> None:
        self._lines = iter(data.split(b"\n"))
        self.is_stopped = False

    async def read_line(self) -> bytes | None:
        await asyncio.sleep(0)
        return None if self.is_stopped else next(self._lines, None)

    async def wait_ended(self) -> ProgramEnd:
        return ProgramEnd(0, "")

    def limit_time(self, seconds: float) -> None: ...

    def write(self, data: bytes) -> None: ...

    async def drain_input(self) -> None: ...

    def stop(self) -> None:
        self.is_stopped = True


class _NoStore:
    """A store that knows only the time, and refuses everything else."""

    async def now(self) -> int:
        return 0

    def __getattr__(self, method: str) -> Any:
        async def refuse(*arguments: Any) -> Any:
            raise NotFound("there is nothing here", code="no_such_card")

        return refuse


class _Worker:
    """The worker as a conversation sees it: a turn, a recorder, a runtime."""

    runtime = Runtime.system()
    timeout = None
    seconds_left = 5.0
    task = _TASK
    attempt_id = "a"
    actor = "w"
    store = _NoStore()
    doing: Any = None
    run = 1
    limits = Limits()

    @property
    def directory(self) -> Any:
        return self

    async def spec(self, name: str) -> None:
        """Return None: no agent is known here."""

    async def ask_store(self, question: Any) -> Any:
        return await question()


def _child() -> Target:
    loop = asyncio.new_event_loop()
    unseen: list[Any] = []
    loop.set_exception_handler(lambda _, about: unseen.append(about))
    worker: Any = _Worker()

    def take(data: bytes) -> bool:
        child: Any = _ScriptedChild(data)
        talk = ChildConversation(worker, child, worker, worker).result()
        try:
            loop.run_until_complete(asyncio.wait_for(talk, PATIENCE_SECONDS))
        except ReportedFailure as ended:
            return not ended.info.code.startswith("agent_")
        except (Suspended, HandedOver, GivenBack):
            return True
        except EndwellError:
            return False
        except TimeoutError:
            raise AssertionError("the worker waits for ever") from None
        finally:
            assert not unseen, unseen
        return True

    return Target(name="child", share=10, valid=one_of(_CONVERSATIONS), take=take)


_topics: Final = one_of((b"work:default:a\nended:default", b"*"))


def _bell(data: bytes) -> bool:
    topics = unpack_topics(data)
    assert all(isinstance(topic, str) for topic in topics)
    pack_topics(topics)
    return True


def targets() -> tuple[Target, ...]:
    return (
        Target(name="program", share=60, valid=one_of(_LINES), take=_program),
        _child(),
        Target(name="doorbell", share=20, valid=_topics, take=_bell, refuses=False),
    )
