"""The subjects of rings on a server that other programs use too.

`endwell.v1.{namespace}.{channel}.cmd.agent.{target}.wakeup`: any program may ring by publishing there. Rings
that concern no agent's work (a task has ended, a lease needs a look) are for Endwell's own processes and
share one subject, `endwell.v1.bell`.
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


class BellMessage(NamedTuple):
    """One message: its subject and its payload."""

    subject: str
    payload: bytes


def agent_subject(
    namespace: str, channel: str, category: Literal["cmd", "evt"], agent: str, suffix: str
) -> str:
    """The subject of messages to or about one agent."""
    return f"{VERSION}.{subject_token(namespace)}.{channel}.{category}.agent.{agent}.{suffix}"


def subject_token(namespace: str) -> str:
    """A namespace as one part of a subject, whose parts are separated by dots."""
    return namespace.replace(".", "%2E")


def bell_messages(topics: Collection[str], sender: str) -> list[BellMessage]:
    """The messages that carry these topics; by `sender` a bell recognises its own."""
    found: list[BellMessage] = []
    other_topics: list[str] = []
    for topic in topics:
        work = _WORK.fullmatch(topic)
        if work is None:
            other_topics.append(topic)
        else:
            found.append(_wakeup_message(work[1], work[2], work[3], sender))
    return [*found, _bell_message(other_topics, sender)] if other_topics else found


def topics_of(subject: str, payload: bytes, sender: str) -> Collection[str]:
    """The topics that a message rings; none when it is our own."""
    fields = _read_fields(payload)
    if fields.get("from") == sender:
        return ()
    wakeup = _WAKEUP.search(subject)
    if wakeup is not None:
        return (f"work:{wakeup[1].replace('%2E', '.')}:{wakeup[2]}",)
    topics = fields.get("topics")
    is_list = isinstance(topics, list) and all(isinstance(topic, str) for topic in topics)
    return [topic for topic in topics if topic] if is_list and topics else (EVERYTHING,)


def _wakeup_message(namespace: str, agent: str, channel: str | None, sender: str) -> BellMessage:
    name = agent_subject(namespace, channel or DEFAULT_CHANNEL, "cmd", agent, "wakeup")
    return BellMessage(name, msgspec.json.encode({"agent_id": agent, "from": sender}))


def _bell_message(topics: list[str], sender: str) -> BellMessage:
    try:
        payload = msgspec.json.encode({"topics": topics, "from": sender})
    except UnicodeEncodeError:
        payload = b""
    if not payload or len(payload) > LARGEST_PAYLOAD:
        payload = msgspec.json.encode({"topics": [EVERYTHING], "from": sender})
    return BellMessage(BELL, payload)


def _read_fields(payload: bytes) -> dict[str, Any]:
    """Any program may publish there: a message that cannot be read still counts as a ring."""
    return read_as(payload, dict[str, Any]) or {}
