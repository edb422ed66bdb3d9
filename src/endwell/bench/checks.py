"""The proof of a figure: every task has succeeded with the right result, and the log verifies."""

from __future__ import annotations

import msgspec

from endwell.bench.place import ANY, BenchPlace
from endwell.errors import NotFound
from endwell.model import content
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.operate.record.verify import verify

PAGE = 2_000
SIDE_BY_SIDE = 64


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at every task of a place found."""

    tasks: int
    problems: list[str]
    first_claim: int
    last_end: int

    @property
    def drain_seconds(self) -> float:
        """From the first claim to the last end, both by the store's own timestamps."""
        return max(self.last_end - self.first_claim, 1) / SECOND


async def check(place: BenchPlace, since: int = 0) -> CheckedRun:
    """Read everything back; claims before `since` were not made by the workers that are measured."""
    seen, before = 0, None
    wrong: list[str] = []
    claims: list[int] = []
    ends: list[int] = []
    while page := await place.node.store.tasks_page(place.namespace, before=before, limit=PAGE):
        before = page[-1].id
        seen += len(page)
        claims += [task.started_at for task in page if task.started_at and task.started_at >= since]
        ends.append(max(task.ended_at or 0 for task in page))
        wrong += await _wrong_results(place, page)
    if seen != len(place.expected):
        wrong.append(f"{seen} tasks where {len(place.expected)} were submitted")
    found = await verify(place.node.store, [place.namespace])
    wrong += [f"log of task {p['task_id']}: {p['kind']} at version {p['version']}" for p in found["problems"]]
    return CheckedRun(
        tasks=seen, problems=wrong, first_claim=min(claims, default=0), last_end=max(ends, default=0)
    )


async def _wrong_results(place: BenchPlace, page: list[Task]) -> list[str]:
    """Results are read side by side: one by one would take longer than the run itself."""
    wrong: list[str] = []

    async def look_at(some: list[Task]) -> None:
        for task in some:
            found, expected = await _result(place, task), place.expected.get(task.id)
            if task.status != "succeeded" or expected not in (found, ANY):
                wrong.append(f"task {task.id} ended as {task.status} with {found!r}")

    parts = [page[start::SIDE_BY_SIDE] for start in range(SIDE_BY_SIDE)]
    lookers = [place.runtime.spawn(look_at(part), "endwell-bench-check") for part in parts if part]
    for looker in lookers:
        await looker
    return wrong


async def _result(place: BenchPlace, task: Task) -> object:
    try:
        card = await place.node.store.card(place.namespace, task.deliverable_card or "")
    except NotFound:
        return None
    return content.decode_stored(card.content)
