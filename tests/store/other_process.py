"""Another process at the same database, told by a URL and a verb what to do; it says what it did."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import sys
from pathlib import Path

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime import Runtime
from endwell.store.contract import Store
from endwell.store.postgres.store import PostgresStore
from endwell.store.sqlite.store import SqliteStore

RUNTIME = Runtime.system()
PAYLOAD = b'{"from":"another process"}'


def store_at(url: str) -> Store:
    if url.startswith("postgresql:"):
        return PostgresStore(url, limits=Limits(), runtime=RUNTIME)
    return SqliteStore(Path(url), limits=Limits(), runtime=RUNTIME)


def submit(payload: bytes = PAYLOAD) -> c.Submit:
    return c.Submit(
        command_id=RUNTIME.ids.new(),
        namespace="default",
        task_id=RUNTIME.ids.new(),
        agent="coder",
        payload=payload,
        payload_hash=hashlib.sha256(payload).hexdigest(),
    )


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - how the test hears it


async def migrate(store: Store) -> None:
    say("schema", len(await store.known_namespaces()))


async def submit_many(store: Store, count: str) -> None:
    """Many callers at once, each answered on its own."""

    async def one() -> None:
        say((await store.commit_one(submit())).unwrap().id)

    await asyncio.gather(*(one() for _ in range(int(count))))


async def submit_in_turn(store: Store, count: str) -> None:
    """One after the other, each in a commit of its own."""
    for _ in range(int(count)):
        say((await store.commit_one(submit())).unwrap().id)


async def submit_forever(store: Store) -> None:
    while True:
        for reply in await store.commit([submit() for _ in range(20)]):
            say(reply.unwrap().id)


async def drain(store: Store, session: str) -> None:
    """Claim and finish all tasks; print the id of each one finished."""
    await store.commit_one(
        c.OpenSession(
            command_id=RUNTIME.ids.new(),
            namespace="default",
            session_id=session,
            kind="worker",
            name="w",
            host="h",
            pid=1,
            agents=(),
            concurrency=9,
            lease=600 * SECOND,
        )
    )
    while taken := (await store.commit_one(claim_next(session))).taken:
        for offer in taken:
            say((await store.commit_one(finish(offer.task))).unwrap().id)


def claim_next(session: str) -> c.ClaimNext:
    return c.ClaimNext(
        command_id=RUNTIME.ids.new(), namespace="default", session_id=session, agents=("coder",), limit=9
    )


def finish(task: Task) -> c.Finish:
    return c.Finish(
        command_id=RUNTIME.ids.new(),
        namespace="default",
        task_id=task.id,
        attempt_id=task.attempt_id or "",
        result=b"1",
        result_hash="x",
    )


async def fill_the_disk(store: Store, path: str) -> None:
    """Until no file may grow any more; then go on when it may again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path).st_size + 300_000, hard))
    stored = 0
    try:
        while True:
            await store.commit_one(submit(b'"' + b"x" * 50_000 + b'"'))
            stored += 1
    except StoreError as error:
        say("refused", error.code, stored)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.commit_one(submit())
    say("resumed", sum((await store.counts_by_status("default")).values()))


VERBS = {
    "migrate": migrate,
    "submit": submit_many,
    "submit-in-turn": submit_in_turn,
    "submit-forever": submit_forever,
    "drain": drain,
    "fill": fill_the_disk,
}


async def main(url: str, verb: str, *args: str) -> None:
    store = store_at(url)
    await store.open()
    await VERBS[verb](store, *args)  # type: ignore[operator]
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
