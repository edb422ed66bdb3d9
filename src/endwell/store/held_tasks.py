"""Lets tasks go on that a person holds for the sake of an effect, once somebody has said what became of it.

A person who settles an effect frees such tasks at once. Supervisors look now and then: an attempt may have
settled it, or the person's process died in between.
"""

from __future__ import annotations

from endwell.model.commands import Unblock
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

PAGE = 200


class HeldTasks:
    """In one namespace, in the name of one actor."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._about = {"namespace": namespace, "actor": actor}
        self._namespace = namespace

    async def of_effect(self, key: str) -> None:
        """The tasks that are held for this effect. Those of earlier versions do not name theirs."""
        await self._free({"": key, key: key})

    async def of_settled_effects(self) -> None:
        """The tasks that are held for any effect that is settled."""
        await self._free(None)

    async def _free(self, by_held_for: dict[str, str] | None) -> None:
        after = ""
        while page := await self._store.held_tasks(self._namespace, after, PAGE):
            after = page[-1][0]
            keys = await self._settled({key for _, key in page}) if by_held_for is None else by_held_for
            freed = [self._unblock(task_id, keys[key]) for task_id, key in page if key in keys]
            if freed:
                await self._store.commit(freed)

    async def _settled(self, keys: set[str]) -> dict[str, str]:
        found = [await self._store.effect(self._namespace, key) for key in keys if key]
        return {effect.key: effect.key for effect in found if effect is not None and effect.is_settled}

    def _unblock(self, task_id: str, key: str) -> Unblock:
        """Refused where somebody was faster, or the task is held for something else by now."""
        command_id = self._runtime.ids.new()
        return Unblock(command_id=command_id, task_id=task_id, effect_key=key, **self._about)
