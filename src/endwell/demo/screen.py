"""Shows the demo: a live screen on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import sys
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from endwell.demo.records import Table, find_shortcomings
from endwell.demo.watcher import Watcher
from endwell.runtime.clock import Clock

COLOURS = {"queued": "white", "dispatched": "cyan", "running": "yellow", "succeeded": "green"}
"""Of statuses; the others are failures and red."""
STATES = {"alive": "green", "starting": "cyan", "frozen": "blue", "killed": "red"}
WORDS = {"kill": "red", "froze": "blue", "woke": "blue", "supervisor": "yellow", "store": "magenta"}
"""Colours of remarks, by their first word."""
COUNTED = {
    "reclaims": "task.reclaimed",
    "stale writes refused": "write.refused",
    "retries": "task.retry_scheduled",
}
TICKER_LINES = 8
PLAIN_SECONDS = 3.0


class PlainScreen:
    """Lines of text, on stdout or on stderr."""

    def __init__(self, clock: Clock, tasks: int, *, on_stderr: bool) -> None:
        self._clock = clock
        self._begin = clock.monotonic()
        self._tasks = tasks
        self._stream = sys.stderr if on_stderr else sys.stdout
        self._said_at = 0.0

    def __enter__(self) -> None:
        """Nothing to open."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def add_line(self, text: str) -> None:
        """One line, with the seconds since the start."""
        self._stream.write(f"{self._clock.monotonic() - self._begin:6.1f} s  {text}\n")
        self._stream.flush()

    def update(self, watcher: Watcher) -> None:
        """Every few seconds, a line with the counts."""
        now = self._clock.monotonic()
        if now - self._said_at >= PLAIN_SECONDS:
            self._said_at = now
            counts = ", ".join(f"{count} {status}" for status, count in sorted(watcher.counts.items()))
            self.add_line(
                f"{sum(watcher.counts.values())} of {self._tasks} submitted: {counts or 'none yet'}"
            )


class LiveScreen:
    """A live picture: bars per status, the processes, and what was done to them."""

    def __init__(self, clock: Clock, tasks: int, console: Console) -> None:
        self._clock = clock
        self._begin = clock.monotonic()
        self._tasks = tasks
        self._ticker: deque[Text] = deque(maxlen=TICKER_LINES)
        self._panels: list[Panel] = []
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def add_line(self, text: str) -> None:
        """A line in the ticker."""
        style = WORDS.get(text.partition(" ")[0], "default")
        self._ticker.append(Text(f"{self._clock.monotonic() - self._begin:6.1f} s  {text}", style=style))
        self._draw_screen()

    def update(self, watcher: Watcher) -> None:
        """The next picture."""
        self._panels = [_status_panel(watcher.counts, self._tasks), _process_panel(watcher)]
        self._draw_screen()

    def _draw_screen(self) -> None:
        ticker = Panel(Group(*self._ticker) if self._ticker else Text("starting"), title="what happens")
        self._live.update(Group(*self._panels, ticker), refresh=True)


def _status_panel(counts: dict[str, int], tasks: int) -> Panel:
    usual = ("queued", "running", "succeeded")
    grid = Grid.grid(padding=(0, 1))
    for status in (*usual, *sorted(set(counts) - set(usual))):
        count, colour = counts.get(status, 0), COLOURS.get(status, "red")
        bar = ProgressBar(total=max(tasks, 1), completed=count, width=50, complete_style=colour)
        grid.add_row(Text(status, style=colour), bar, f"{count:>5}")
    return Panel(grid, title=f"{sum(counts.values())} of {tasks} tasks submitted")


def _process_panel(watcher: Watcher) -> Panel:
    grid = Grid.grid(padding=(0, 2))
    for member in watcher.crew.members.values():
        state = "alive" if member.is_ready else member.state
        held = watcher.held[member.pid].tasks if member.pid in watcher.held else 0
        holds = f"holds {held}" if held else ""
        grid.add_row(member.name, f"pid {member.pid}", Text(state, style=STATES.get(state, "white")), holds)
    counted = "   ".join(f"{word} {watcher.events[kind]}" for word, kind in COUNTED.items())
    return Panel(Group(grid, Text(counted, style="dim")), title="processes")


def show_table(table: Table, console: Console, seconds: float) -> None:
    """What the reader found, and the verdict."""
    title = "Read back from store and sink, by a separate process"
    grid = Grid("", "", title=title, title_justify="left", show_header=False)
    grid.columns[1].justify = "right"
    for what, value in _rows(table).items():
        grid.add_row(what, str(value))
    console.print(grid)
    wrong = find_shortcomings(table)
    for problem in wrong:
        console.print(Text(f"not shown: {problem}", style="red"))
    if not wrong:
        console.print(Text(f"0 lost, 0 stuck, 0 doubled, after {seconds:.0f} s.", style="green"))


def _rows(table: Table) -> dict[str, object]:
    held = sum(freeze.tasks_held for freeze in table.freezes)
    return {
        "tasks submitted": table.submitted,
        "ended": ", ".join(f"{count} {status}" for status, count in sorted(table.ended.items())),
        "processes killed with -9": len(table.kills),
        "  of these, workers that held tasks": table.victim_count,
        "workers frozen past their lease": f"{len(table.freezes)}, holding {held}",
        "tasks reclaimed from dead or frozen workers": table.reclaims,
        "stale writes refused": table.refused_stale,
        "retries after an exception": table.retries,
        "executions and effects in the sink": table.sink_calls,
        "effects, each with its line in the sink": table.effects,
        "  of these unknown after a fault, and settled": table.effects_settled,
        "effects that happened twice": table.effects_duplicated,
        "lost": table.lost,
        "stuck": table.stuck,
        "finished twice": table.doubly_finished,
        "tasks whose log does not verify": table.log_problems,
    }
