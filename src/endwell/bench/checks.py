"""No figure without proof: every task has ended well, every result is there and right, the log verifies."""

from __future__ import annotations

import msgspec

from endwell.bench.place import BenchPlace
from endwell.errors import NotFound
from endwell.model import content
from endwell.model.task import Task
from endwell.operate.verify import verify

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
        return max(self.last_end - self.first_claim, 1) / 1_000_000


async def check(place: BenchPlace, since: int = 0) -> CheckedRun:
    """Read everything back; claims before `since` were not made by the workers that are measured."""
    expected = {task_id: number for number, task_id in enumerate(place.ids)}
    seen, before = 0, None
    wrong: list[str] = []
    claims: list[int] = []
    ends: list[int] = []
    while page := await place.node.store.tasks_page(place.namespace, before=before, limit=PAGE):
        before = page[-1].id
        seen += len(page)
        claims += [task.started_at for task in page if task.started_at and task.started_at >= since]
        ends.append(max(task.ended_at or 0 for task in page))
        wrong += await _wrong_in(place, page, expected)
    if seen != len(expected):
        wrong.append(f"{seen} tasks where {len(expected)} were submitted")
    wrong += await _log_problems(place)
    return CheckedRun(
        tasks=seen, problems=wrong, first_claim=min(claims, default=0), last_end=max(ends, default=0)
    )


async def _wrong_in(place: BenchPlace, page: list[Task], expected: dict[str, int]) -> list[str]:
    """Results are read side by side: one by one would take longer than the run itself."""
    wrong: list[str] = []

    async def look(some: list[Task]) -> None:
        for task in some:
            found = await _result(place, task)
            if task.status != "succeeded" or found != expected.get(task.id):
                wrong.append(f"task {task.id} ended as {task.status} with {found!r}")

    parts = [page[start::SIDE_BY_SIDE] for start in range(SIDE_BY_SIDE)]
    lookers = [place.runtime.spawn(look(part), "endwell-bench-check") for part in parts if part]
    for looker in lookers:
        await looker
    return wrong


async def _result(place: BenchPlace, task: Task) -> object:
    try:
        card = await place.node.store.card(place.namespace, task.deliverable_card or "")
    except NotFound:
        return None
    return content.decode_stored(card.content)


async def _log_problems(place: BenchPlace) -> list[str]:
    found = await verify(place.node.store, [place.namespace])
    return [f"log of task {p['task_id']}: {p['kind']} at version {p['version']}" for p in found["problems"]]
