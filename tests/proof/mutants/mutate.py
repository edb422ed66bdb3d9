"""The small changes: each replaces one stretch of a file's text, found by its syntax tree.

| kind              | change                                                                              |
|-------------------|-------------------------------------------------------------------------------------|
| comparison        | `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `in` with their `not` swapped   |
| and/or            | `and` and `or` swapped                                                              |
| operand dropped   | one operand of an `and` or `or` left out                                            |
| not dropped       | `not x` becomes `x`                                                                 |
| first, other branch | `x if y else z` becomes `x`, or `z`                                               |
| arithmetic        | `+` and `-` swapped; `*` becomes `//`, `//` and `/` become `*`                      |
| constant          | `True` and `False` swapped; a number made one greater                               |
| argument dropped  | a keyword argument left out                                                         |
| return nothing    | `return x` becomes `return None`                                                    |
| statement dropped | a call, `raise`, `+=`, `continue` or `break` left out                               |

Nothing is changed that no user could notice: annotations, docstrings, imports for types, how a class is made
(`frozen=True`), decorators (`lru_cache(maxsize=...)`), and how much of a value a message quotes.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).parents[3] / "src" / "endwell"
ROOMS: Final = ("machine", "policy")
OTHER_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change. Its name says where it is and what it does, and stays the same while the text does."""

    file: str
    line: int
    kind: str
    old: str
    new: str
    text: str
    function: str
    """The function around it; empty for code that runs when the module is imported."""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {_short(self.old)} -> {_short(self.new)}"

    @property
    def key(self) -> str:
        """Equal wherever in its file the change stands: its function and the text of its line."""
        where, changed = self.function or "module", self.text.splitlines()[self.line - 1].strip()
        return (
            f"{self.file} {where} {self.kind}: {_short(self.old)} -> {_short(self.new)} in: {_short(changed)}"
        )

    def diff(self, before: str) -> str:
        lines = difflib.unified_diff(before.splitlines(), self.text.splitlines(), lineterm="", n=0)
        return "\n".join(list(lines)[3:])


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


def files() -> list[Path]:
    """List the files that are changed: all of both rooms."""
    return [path for room in ROOMS for path in sorted((SOURCE / room).glob("*.py"))]


def mutants_of(path: Path) -> list[Mutant]:
    """Yield every change of one file."""
    return mutants_in(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))


def mutants_in(file: str, text: str) -> list[Mutant]:
    """Yield every change of a file's text."""
    tree, places = ast.parse(text), _Places(text)
    inside = _functions_around(tree)
    found = []
    for node, kind, new in _changes(tree):
        start, end = places.span(node)
        changed = text[:start] + new + text[end:]
        found.append(Mutant(file, node.lineno, kind, text[start:end], new, changed, inside.get(id(node), "")))
    return sorted(found, key=lambda one: (one.line, one.kind, one.new))


class _Places:
    """Converts the places of nodes, which the tree counts in bytes, to places in the text."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _functions_around(tree: ast.Module) -> dict[int, str]:
    """Map each node to the innermost function around it; code outside runs at import."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {
        id(node): function.name for function in functions for line in function.body for node in ast.walk(line)
    }


def _changes(tree: ast.Module) -> Iterator[tuple[Any, str, str]]:
    """Yield the changes of every node whose effect can be noticed."""
    skipped = {id(child) for node in _unexecuted(tree) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) not in skipped:
            yield from ((node, kind, new) for kind, new in _of(node))


def _unexecuted(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef):
            yield from node.decorator_list
            yield from () if node.returns is None else (node.returns,)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "content.safe_repr":
            yield from node.args
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node
        elif isinstance(node, ast.ClassDef):  # frozen=True, kw_only=True: how a value is made, not what it is
            yield from node.keywords
            yield from node.decorator_list


def _of(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare():
            yield from _comparisons(node)
        case ast.BoolOp():
            yield from _booleans(node)
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", f"({ast.unparse(node.operand)})"
        case ast.IfExp():
            yield "other branch", f"({ast.unparse(node.orelse)})"
            yield "first branch", f"({ast.unparse(node.body)})"
        case ast.BinOp() if type(node.op) in OTHER_ARITHMETIC:
            other = ast.BinOp(node.left, OTHER_ARITHMETIC[type(node.op)](), node.right)
            yield "arithmetic", f"({ast.unparse(other)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield "constant", repr(value + 1)
        case ast.keyword(arg=str()):
            yield "argument dropped", "**{}"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return nothing", "return None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield "statement dropped", "pass"
        case _:
            return


def _comparisons(node: ast.Compare) -> Iterator[tuple[str, str]]:
    for place, operator in enumerate(node.ops):
        other = deepcopy(node)
        other.ops[place] = OTHER_COMPARISONS[type(operator)]()
        yield "comparison", f"({ast.unparse(other)})"


def _booleans(node: ast.BoolOp) -> Iterator[tuple[str, str]]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})"
    for place in range(len(node.values)):
        left = [value for number, value in enumerate(node.values) if number != place]
        kept = left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        yield "operand dropped", f"({ast.unparse(kept)})"
