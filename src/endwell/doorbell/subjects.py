"""What a ring is called on a server that others use too.

`endwell.v1.{namespace}.{channel}.cmd.agent.{target}.wakeup`: any program may ring by that name. Rings that
concern no agent's work (a task ended, a lease is to be looked at) are for Endwell's own processes and share
one name, `endwell.v1.bell`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, Literal, NamedTuple

import msgspec

from endwell.doorbell.contract import EVERYTHING
from endwell.model.content import read_as
from endwell.model.names import DEFAULT_CHANNEL

VERSION: Final = "endwell.v1"
BELL: Final = f"{VERSION}.bell"
LARGEST_PAYLOAD: Final = 60_000
"""Bytes of topics in one message; more is sent as `EVERYTHING`."""

_WORK: Final = re.compile(r"work:([A-Za-z0-9_.:@-]+):([a-z0-9_-]+)(?:/([a-z0-9_-]+))?")
_WAKEUP: Final = re.compile(r"endwell\.v1\.([^.]+)\.[^.]+\.cmd\.agent\.([^.]+)\.wakeup")


class Note(NamedTuple):
    """One message: its subject and its payload."""

    subject: str
    payload: bytes


def subject(namespace: str, channel: str, category: Literal["cmd", "evt"], target: str, suffix: str) -> str:
    """The name of everything that is said to or about one agent."""
    return f"{VERSION}.{token(namespace)}.{channel}.{category}.agent.{target}.{suffix}"


def token(namespace: str) -> str:
    """A namespace as one part of a subject, whose parts are separated by dots."""
    return namespace.replace(".", "%2E")


def notes(topics: Collection[str], sender: str) -> list[Note]:
    """The messages that carry these topics; `sender` lets a bell know its own."""
    found: list[Note] = []
    others: list[str] = []
    for topic in topics:
        work = _WORK.fullmatch(topic)
        if work is None:
            others.append(topic)
        else:
            found.append(_wakeup(work[1], work[2], work[3], sender))
    return [*found, _bell(others, sender)] if others else found


def topics_of(subject: str, payload: bytes, sender: str) -> Collection[str]:
    """What a message says was rung; nothing when it is our own."""
    said = _read(payload)
    if said.get("from") == sender:
        return ()
    wakeup = _WAKEUP.search(subject)
    if wakeup is not None:
        return (f"work:{wakeup[1].replace('%2E', '.')}:{wakeup[2]}",)
    topics = said.get("topics")
    is_list = isinstance(topics, list) and all(isinstance(topic, str) for topic in topics)
    return [topic for topic in topics if topic] if is_list and topics else (EVERYTHING,)


def _wakeup(namespace: str, agent: str, channel: str | None, sender: str) -> Note:
    name = subject(namespace, channel or DEFAULT_CHANNEL, "cmd", agent, "wakeup")
    return Note(name, msgspec.json.encode({"agent_id": agent, "from": sender}))


def _bell(topics: list[str], sender: str) -> Note:
    try:
        payload = msgspec.json.encode({"topics": topics, "from": sender})
    except UnicodeEncodeError:
        payload = b""
    if not payload or len(payload) > LARGEST_PAYLOAD:
        payload = msgspec.json.encode({"topics": [EVERYTHING], "from": sender})
    return Note(BELL, payload)


def _read(payload: bytes) -> dict[str, Any]:
    """Whatever others may have written there: a ring is heard even if it says nothing."""
    return read_as(payload, dict[str, Any]) or {}
