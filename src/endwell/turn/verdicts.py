"""What a `reconcile` may say of an effect, and the key that an effect's function goes by."""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from typing import Any, Final

import msgspec

from endwell.errors import UsageError


class Done(msgspec.Struct, frozen=True):
    """It took place, and this is its result."""

    value: Any = None


class Unsettled(Enum):
    """It did not take place, or nobody can say."""

    NOT_DONE = "not_done"
    CANNOT_TELL = "cannot_tell"


NOT_DONE: Final = Unsettled.NOT_DONE
CANNOT_TELL: Final = Unsettled.CANNOT_TELL
Verdict = Done | Unsettled

EFFECT_KEY: ContextVar[str] = ContextVar("endwell_effect_key", default="")


def verdict_of(answer: Any) -> Verdict:
    """A plain value means that it was done, `None` that it was not."""
    if isinstance(answer, Done | Unsettled):
        return answer
    return NOT_DONE if answer is None else Done(answer)


def effect_key() -> str:
    """Inside an effect's function: the key under which the effect happens at most once."""
    key = EFFECT_KEY.get()
    if not key:
        raise UsageError("effect_key() has an answer only inside the function of ctx.effect(...)")
    return key
