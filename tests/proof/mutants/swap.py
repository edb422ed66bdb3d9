"""Puts a mutant in place of the product's own code, in a process that has already imported it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType


@lru_cache
def compile_file(text: str, file: str) -> CodeType:
    """Compile an unchanged file, once for all its mutants."""
    return compile(text, file, "exec")


def swap(before: str, after: str, file: str) -> int:
    """Give every function of that file its changed code; return how many were changed."""
    pairs = _pairs(compile_file(before, file), compile(after, file, "exec"), is_top=True)
    if pairs is None:
        raise ValueError("what a module computes once cannot be taken back")
    codes = {old: new for old, new in pairs if old != new}
    changed = 0
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == file and thing.__code__ in codes:
            thing.__code__ = codes[thing.__code__]
            changed += 1
    return changed


def _pairs(old: CodeType, new: CodeType, *, is_top: bool) -> list[tuple[CodeType, CodeType]] | None:
    """Pair the functions of both versions at all depths; None if the code around them differs."""
    inside, others = list(_codes(old)), list(_codes(new))
    if len(inside) != len(others) or (is_top and _around(old) != _around(new)):
        return None
    found = [] if is_top else [(old, new)]
    for one, other in zip(inside, others, strict=True):
        is_class = one.co_flags & 0x1 == 0  # not optimised: a class body, executed once as a module is
        deeper = _pairs(one, other, is_top=is_class)
        if deeper is None:
            return None
        found += deeper
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    return (const for const in code.co_consts if isinstance(const, CodeType))


def _around(code: CodeType) -> tuple[object, ...]:
    consts = tuple((type(one), one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, code.co_names, consts
