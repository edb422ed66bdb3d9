"""The command that says that a record came out of a backup."""

from __future__ import annotations

from endwell.model.commands import Command


class MarkRestored(Command, frozen=True, kw_only=True):
    """The namespace's record was restored or imported: it does not know the effects made since the backup."""
