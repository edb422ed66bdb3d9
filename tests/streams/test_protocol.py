"""docs/protocol.md is the protocol: its tables are read here, and the code is held to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import endwell
from endwell.settings import Settings
from endwell.streams import entries, protocol
from endwell.streams.protocol import Names, consumer_name

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each table, without its head, marks of code removed."""
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in block.splitlines()]
        found.append(rows[2:])
    return found


def test_page_and_code_have_the_same_version() -> None:
    assert f"Protocol version: {protocol.PROTOCOL_VERSION}." in PAGE


@pytest.mark.covers("S4.2", "S4.3", "S4.4", "S4.5", "S4.6")
def test_page_and_code_have_the_same_streams_groups_and_keys() -> None:
    streams, keys = tables(section("Streams and groups"))
    assert [(row[0], row[1]) for row in streams] == [
        (protocol.TASK, protocol.WORKERS_GROUP),
        (protocol.RESULT, protocol.ORCHESTRATOR_GROUP),
        (protocol.DLQ, "–"),
    ]
    named = (protocol.TASK, protocol.RESULT, protocol.DLQ, protocol.WORKERS_GROUP)
    assert named == ("stream:task", "stream:result", "stream:dlq", "cg:workers"), "others rely on them"
    own = Names()
    assert [row[0] for row in keys] == [
        own.grant_key("<turn>", 0).replace(":0", ":<epoch>"),
        own.grants,
        own.workers,
        own.worker_key("<name>"),
        own.leader,
        own.results_cursor,
        own.settings,
        own.dead_letters,
        own.dead_letters_cursor,
    ]


@pytest.mark.covers("S4.39", "S4.40", "S4.41", "S4.42", "S4.43", "S4.44")
@pytest.mark.parametrize(
    ("title", "fields", "required"),
    [
        ("An entry of stream:task", protocol.TASK_FIELDS, protocol.REQUIRED_TASK_FIELDS),
        ("An entry of stream:result", protocol.REPORT_FIELDS, protocol.REQUIRED_REPORT_FIELDS),
        ("An entry of stream:dlq", protocol.DLQ_FIELDS, None),
    ],
)
def test_page_and_code_have_the_same_fields(
    title: str, fields: tuple[str, ...], required: tuple[str, ...] | None
) -> None:
    table = tables(section(title))[0]
    assert tuple(row[0] for row in table) == fields
    if required is not None:
        assert tuple(row[0] for row in table if row[1] == "yes") == required


def test_page_and_code_have_the_same_statuses_and_limits() -> None:
    statuses = tables(section("An entry of stream:result"))[1]
    assert tuple(row[0] for row in statuses) == protocol.REPORT_STATUSES
    assert f"{entries.MAX_ENTRY_BYTES:,} bytes" in section("An entry of stream:task")


@pytest.mark.covers("S4.19", "S4.20", "S4.29")
def test_page_and_code_have_the_same_defaults() -> None:
    (table,) = tables(section("Times and counts"))
    queue = Settings().queue
    assert {row[0]: float(row[1]) for row in table} == {
        "VISIBILITY_TIMEOUT_S": queue.VISIBILITY_TIMEOUT_S,
        "HEARTBEAT_INTERVAL_S": queue.HEARTBEAT_INTERVAL_S,
        "RECLAIM_INTERVAL_S": queue.RECLAIM_INTERVAL_S,
        "MAX_RETRIES": queue.MAX_RETRIES,
    }
    assert (queue.VISIBILITY_TIMEOUT_S, queue.HEARTBEAT_INTERVAL_S, queue.MAX_RETRIES) == (300.0, 30.0, 3)


def test_several_installations_share_a_server_by_prefix_and_namespace() -> None:
    assert Names.for_namespace("", "default").task == "stream:task"
    assert Names.for_namespace("acme:", "default").task == "acme:stream:task"
    assert Names.for_namespace("acme:", "lab").task == "acme:lab:stream:task"
    assert Names.for_namespace("acme:", "lab").grant_key("t.t1", 3) == "acme:lab:grant:t.t1:3"


def test_consumer_name_is_worker_and_process() -> None:
    assert consumer_name("bert", 12) == "bert-12"
    assert consumer_name("host-12", 12) == "host-12"


COMMAND = re.compile(r"[\"'](X[A-Z]{2,}|H(?:SET|DEL|MGET|GETALL|LEN)|EVAL|SRANDMEMBER)[\"']")
SPELL_COMMANDS = {"consumer_group", "dead_letter_stream", "foreign_keys", "pending", "task_streams"}


def test_commands_on_streams_are_spelled_in_five_modules() -> None:
    """The relay appends to a stream of its own; the simulator answers the commands."""
    others = ("pmo/relay/redis.py", "testing", "selftest")
    source = Path(endwell.__file__).parent
    found = {
        path.stem
        for path in source.rglob("*.py")
        if COMMAND.search(path.read_text()) and not str(path.relative_to(source)).startswith(others)
    }
    assert found == SPELL_COMMANDS
