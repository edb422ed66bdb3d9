"""How the demo looks: a live screen on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import sys
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from endwell.demo.table import Table, shortcomings
from endwell.demo.watcher import DemoView
from endwell.runtime.clock import Clock

COLOURS = {
    "queued": "white",
    "dispatched": "cyan",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "timeout": "red",
    "cancelled": "red",
}
STATES = {"alive": "green", "starting": "cyan", "frozen": "blue", "killed": "red"}
TICKER_LINES = 8


class PlainScreen:
    """Lines on stderr, or on stdout when nothing else is wanted there."""

    def __init__(self, clock: Clock, *, on_stderr: bool) -> None:
        self._clock = clock
        self._begin = clock.monotonic()
        self._stream = sys.stderr if on_stderr else sys.stdout
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        return None

    def say(self, text: str) -> None:
        """One line, with the seconds since the start."""
        passed = self._clock.monotonic() - self._begin
        self._stream.write(f"{passed:6.1f} s  {text}\n")
        self._stream.flush()

    def update(self, view: DemoView) -> None:
        """Every few seconds, how far it is."""
        now = self._clock.monotonic()
        if now - self._said_at >= 3:
            self._said_at = now
            said = ", ".join(f"{count} {status}" for status, count in sorted(view.counts.items()))
            self.say(f"{view.submitted} of {view.total} submitted: {said or 'none yet'}")


class Screen:
    """A live picture: bars per status, the processes, and what was done to them."""

    def __init__(self, clock: Clock, console: Console) -> None:
        self._clock = clock
        self._begin = clock.monotonic()
        self._ticker: deque[Text] = deque(maxlen=TICKER_LINES)
        self._view: DemoView | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """A line in the ticker."""
        style = next((colour for word, colour in _WORDS.items() if text.startswith(word)), "default")
        self._ticker.append(Text(f"{self._clock.monotonic() - self._begin:6.1f} s  {text}", style=style))
        self._draw()

    def update(self, view: DemoView) -> None:
        """The next picture."""
        self._view = view
        self._draw()

    def _draw(self) -> None:
        parts = [Panel(Group(*self._ticker) if self._ticker else Text("starting"), title="what happens")]
        if self._view is not None:
            parts = [_bars(self._view), _people(self._view), *parts]
        self._live.update(Group(*parts), refresh=True)


_WORDS = {"kill": "red", "froze": "blue", "woke": "blue", "supervisor": "yellow", "store": "magenta"}


def _bars(view: DemoView) -> Panel:
    grid = Grid.grid(padding=(0, 1))
    for status in ("queued", "running", "succeeded", *sorted(set(view.counts) - _USUAL)):
        count = view.counts.get(status, 0)
        colour = COLOURS.get(status, "white")
        bar = ProgressBar(total=max(view.total, 1), completed=count, width=50, complete_style=colour)
        grid.add_row(Text(status, style=colour), bar, f"{count:>5}")
    return Panel(grid, title=f"{view.submitted} of {view.total} tasks submitted")


_USUAL = {"queued", "running", "succeeded"}


def _people(view: DemoView) -> Panel:
    grid = Grid.grid(padding=(0, 2))
    for person in view.people:
        colour = STATES.get(person.state, "white")
        holds = f"holds {person.tasks}" if person.tasks else ""
        grid.add_row(person.name, f"pid {person.pid}", Text(person.state, style=colour), holds)
    counted = "   ".join(f"{word} {view.events[kind]}" for word, kind in _COUNTED.items())
    return Panel(Group(grid, Text(counted, style="dim")), title="processes")


_COUNTED = {
    "reclaims": "task.reclaimed",
    "stale writes refused": "write.refused",
    "retries": "task.retry_scheduled",
}


def show_table(table: Table, console: Console, seconds: float) -> None:
    """What the reader found, and the verdict."""
    title = "Read back from store and sink, by a separate process"
    grid = Grid(title=title, title_justify="left", show_header=False)
    grid.add_column("")
    grid.add_column("", justify="right")
    for what, value in _rows(table):
        grid.add_row(what, str(value))
    console.print(grid)
    wrong = shortcomings(table)
    for problem in wrong:
        console.print(Text(f"not shown: {problem}", style="red"))
    if not wrong:
        console.print(Text(f"0 lost, 0 stuck, 0 doubled, after {seconds:.0f} s.", style="green"))


def _rows(table: Table) -> list[tuple[str, object]]:
    ended = ", ".join(f"{count} {status}" for status, count in sorted(table.ended.items()))
    held = sum(freeze.tasks_held for freeze in table.freezes)
    return [
        ("tasks submitted", table.submitted),
        ("ended", ended),
        ("processes killed with -9", len(table.kills)),
        ("  of these, workers that held tasks", table.victims),
        ("workers frozen past their lease", f"{len(table.freezes)}, holding {held}"),
        ("tasks taken back from dead or frozen workers", table.reclaims),
        ("stale writes refused", table.refused_stale),
        ("retries after an exception", table.retries),
        ("executions and effects in the sink", table.sink_calls),
        ("effects, each with its line in the sink", table.effects),
        ("  of these unknown after a fault, and settled", table.effects_settled),
        ("effects that happened twice", table.effects_duplicated),
        ("lost", table.lost),
        ("stuck", table.stuck),
        ("finished twice", table.doubly_finished),
        ("tasks whose log does not verify", table.log_problems),
    ]
