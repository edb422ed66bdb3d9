"""Effects with an unknown outcome: a person settles them, which frees the tasks that are held for them."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import CANNOT_TELL, AsyncHandle, Context, Done, TaskFailed
from endwell.errors import WrongStatus
from endwell.model import commands as c
from endwell.model import content, moments
from endwell.model.moments import SECOND
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Pay, effect_of, payer


@pytest.mark.covers("T15")
@pytest.mark.parametrize("says", [CANNOT_TELL, ValueError("no answer"), Done(object()), "no reconcile"])
async def test_an_effect_without_a_verdict_is_handed_to_a_person(effect_world: World, says: Any) -> None:
    pay = Pay(says=says)
    payer(effect_world, pay, can_look=says != "no reconcile", retries=3)
    worker = await effect_world.working()
    handle = await effect_world.submitted("payer")
    task = await effect_world.in_status(handle, "blocked")

    assert (task.reason, task.owner) == ("effect_unknown", effect_world.app.owner)
    assert (await effect_of(effect_world, "order-1")).status == "unknown"
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert pay.calls == 1
    await effect_world.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert await handle.result(PATIENCE_SECONDS) == "by hand"
    assert pay.calls == 1


async def test_a_person_may_say_that_it_was_not_done(effect_world: World) -> None:
    pay = Pay()
    payer(effect_world, pay, can_look=False)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    with pytest.raises(WrongStatus) as refused:
        await effect_world.client.settle_effect("order-1", "not_done", by="ada")
    effect = await effect_of(effect_world, "order-1")
    moment = moments.moment((effect.not_after or 0) + int(0.1 * SECOND))
    assert (refused.value.code, str(moment) in refused.value.message) == ("effect_in_flight", True)
    await effect_world.client.settle_effect("order-1", "not_done", by="ada", force=True)
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2
    (settled,) = await effect_world.facts(handle, "effect.settled")
    assert (settled.by, settled.is_forced) == ("ada", True)


async def test_an_abandoned_effect_is_never_executed(effect_world: World) -> None:
    pay = Pay()
    payer(effect_world, pay, can_look=False)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    await effect_world.client.settle_effect("order-1", "abandon", by="ada")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "effect_abandoned"
    assert pay.calls == 1


async def test_settling_an_effect_frees_every_task_that_is_held_for_it(effect_world: World) -> None:
    pay = Pay()
    payer(effect_world, pay, can_look=False)
    await effect_world.working()
    first, second = await effect_world.submitted("payer"), await effect_world.submitted("payer")
    for handle in (first, second):
        await effect_world.in_status(handle, "blocked")
    asked = [await handle.why() for handle in (first, second)]
    for why in asked:
        assert why["waiting_for"][0] == {"kind": "effect", "id": "order-1", "deadline": None}
        assert "effect settle" in why["actions"]

    await effect_world.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == ["by hand", "by hand"]
    assert pay.calls == 1


async def test_a_supervisor_frees_tasks_that_are_held_for_an_effect_that_is_settled(
    effect_world: World,
) -> None:
    """The process that settled it died before it could free the other tasks that are held for it."""
    pay = Pay()
    payer(effect_world, pay, can_look=False)
    await effect_world.working()
    first, second = await effect_world.submitted("payer"), await effect_world.submitted("payer")
    for handle in (first, second):
        await effect_world.in_status(handle, "blocked")
    effect = await effect_of(effect_world, "order-1")
    await effect_world.store.commit_one(
        c.SettleEffect(
            command_id=effect_world.app.runtime.ids.new(),
            namespace=effect_world.namespace,
            actor="ada",
            task_id=effect.task_id,
            key="order-1",
            verdict="done",
            content=b'"by hand"',
            content_hash=content.fingerprint(b'"by hand"'),
        )
    )
    await (await effect_world.supervisor()).run_once()
    assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == ["by hand", "by hand"]
    assert pay.calls == 1


async def test_a_task_that_an_earlier_version_blocked_names_its_unknown_effect_too(
    effect_world: World,
) -> None:
    """Its row does not say for which effect it is held."""
    payer(effect_world, Pay(), can_look=False)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    await effect_world.sql(
        "UPDATE tasks SET inside = NULL WHERE namespace = ? AND id = ?", effect_world.namespace, handle.id
    )
    assert await is_held_for(handle, "order-1")
    assert "effect settle" in (await handle.why())["actions"]

    await effect_world.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert await handle.result(PATIENCE_SECONDS) == "by hand"


async def test_settling_an_effect_does_not_free_tasks_held_for_another(effect_world: World) -> None:
    """Although it has asked for the settled one, too, before a person sent it on."""
    wanted = ["first"]

    def lost(key: str) -> str:
        raise ConnectionError(f"the outcome of {key} is unknown")

    @effect_world.app.agent("payer")
    async def payer(ctx: Context) -> Any:
        return await ctx.effect(f"pay {wanted[0]}", lost, wanted[0], key=wanted[0])

    await effect_world.working()
    moved, kept = await effect_world.submitted("payer"), await effect_world.submitted("payer")
    for handle in (moved, kept):
        await effect_world.in_status(handle, "blocked")
    wanted[0] = "second"
    await kept.unblock()
    await eventually(lambda: is_held_for(kept, "second"), "it continues, and is held for another effect")

    await effect_world.client.settle_effect("first", "done", by="ada", result="by hand")
    freed = [(await effect_world.history(handle)).count("task.unblocked") for handle in (moved, kept)]
    assert freed == [1, 1], "the other one only by the person who sent it on"
    assert await is_held_for(kept, "second")

    await effect_world.client.settle_effect("second", "done", by="ada", result="by hand, too")
    assert await kept.result(PATIENCE_SECONDS) == "by hand, too"


async def is_held_for(handle: AsyncHandle, key: str) -> bool:
    return {"kind": "effect", "id": key, "deadline": None} in (await handle.why())["waiting_for"]
