"""`endwell selftest redis`: the protocol's acceptance criteria, on the operator's own server.

Real PMO and worker processes on a fresh SQLite file, under a prefix of their own on the server, which is
removed afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from endwell.cli.base.commands import EndwellGroup
from endwell.cli.base.loading import settings_of
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show, table_text
from endwell.demo.crew import run_interruptibly
from endwell.errors import EndwellError, UsageError
from endwell.runtime.base import Runtime
from endwell.selftest.redis import CRITERIA, Bed
from endwell.settings import mask_url

Criterion = Callable[[Bed], Awaitable[str]]


@click.group(cls=EndwellGroup)
def selftest() -> None:
    """Test whether a server does what Endwell needs of it.

    \b
      endwell selftest redis redis://127.0.0.1:6379
    """


@selftest.command("redis")
@click.argument("url", required=False)
@pass_options
def redis_server(options: Options, url: str | None) -> int:
    """Test the four acceptance criteria of the task queue protocol on this server; default: redis.url.

    Starts its own processes on a fresh store, kills one of them, and removes its keys from the server.
    Exit 1 if a criterion fails.

    \b
      endwell selftest redis redis://127.0.0.1:6379
    """
    server = url or settings_of(options).redis.url
    if not server:
        raise UsageError(
            "no server is named, and redis.url is not set",
            hint="endwell selftest redis redis://127.0.0.1:6379",
            field="url",
        )
    with tempfile.TemporaryDirectory(prefix="endwell-selftest-", ignore_cleanup_errors=True) as made:
        items = run_interruptibly(_try_criteria(Bed(Runtime.system(), Path(made), server)))
    document = {"ok": all(item["ok"] for item in items), "server": mask_url(server), "items": items}
    show(options, {**document, "next": None}, _result_text)
    return 0 if document["ok"] else 1


async def _try_criteria(bed: Bed) -> list[dict[str, Any]]:
    trouble = await bed.find_trouble()
    if trouble is not None:
        return [{"criterion": 0, "what": "the server answers", "ok": False, "detail": trouble}]
    async with bed:
        return [
            {"criterion": number, "what": what, **await _try_criterion(bed, criterion)}
            for number, (what, criterion) in enumerate(CRITERIA.items(), 1)
        ]


async def _try_criterion(bed: Bed, criterion: Criterion) -> dict[str, Any]:
    """A failed criterion does not keep the others from being tried."""
    try:
        return {"ok": True, "detail": await criterion(bed)}
    except (AssertionError, EndwellError, TimeoutError) as error:
        return {"ok": False, "detail": str(error) or type(error).__name__}


def _result_text(document: dict[str, Any]) -> str:
    rows = [
        (item["criterion"], "ok" if item["ok"] else "FAILED", item["what"], item["detail"])
        for item in document["items"]
    ]
    verdict = "all hold" if document["ok"] else "NOT all hold"
    return f"{table_text(('', '', 'criterion', 'seen'), rows, empty='')}\n{verdict} at {document['server']}"
