"""Makes the commands of one actor, and hands them to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from endwell.model.commands import Command
from endwell.runtime.ids import Ids
from endwell.store.contract import Store
from endwell.store.rows import Reply

AnyCommand = TypeVar("AnyCommand", bound=Command)


class Actor:
    """A worker, a PMO or a person in one namespace, under the name that events keep."""

    def __init__(self, store: Store, ids: Ids, *, namespace: str, name: str) -> None:
        self.store = store
        self.namespace = namespace
        self.name = name
        self._ids = ids

    def with_name(self, name: str) -> Actor:
        """The same store and namespace under another name."""
        return Actor(self.store, self._ids, namespace=self.namespace, name=name)

    def new_id(self) -> str:
        """An id for something that did not exist before."""
        return self._ids.new()

    def fraction(self) -> float:
        """A random number from 0 to 1, for jitter."""
        return self._ids.fraction()

    def command(self, kind: Callable[..., AnyCommand], /, **fields: Any) -> AnyCommand:
        """A command of this actor; it has an id of its own unless one is given."""
        if "command_id" not in fields:
            fields["command_id"] = self._ids.new()
        return kind(namespace=self.namespace, actor=self.name, **fields)

    async def commit(self, commands: Sequence[Command]) -> list[Reply]:
        """Hand in several commands; a reply each, which may be a refusal."""
        return await self.store.commit(commands)

    async def send(self, kind: Callable[..., Command], /, **fields: Any) -> Reply:
        """Make a command and hand it in; its refusal is raised."""
        return await self.store.commit_one(self.command(kind, **fields))
