"""Where commits are handed in. Whoever asks serves all who wait, if that can be done at once.

A short transaction costs less than handing it to another thread and back. What cannot be done at once,
because another process holds the file, a batch has to be taken apart, or the log is to be folded back,
is left to the desk's own thread, which may wait; an event loop may not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import apsw

from endwell.model.commands import Command, Heartbeat
from endwell.runtime.base import Runtime
from endwell.store.contract import BATCH_LIMIT, Ring
from endwell.store.rows import Outcome, Reply
from endwell.store.sqlite.driver import NotAtOnceError, SqliteDriver
from endwell.store.sqlite.pending import PendingCommit, deliver
from endwell.store.sqlite.reader import Owner

log = logging.getLogger(__name__)

_Commit = PendingCommit[Sequence[Command], list[Reply]]


class Writer(Owner):
    """One connection that writes, used by one thread at a time. Heartbeats go before everything else."""

    def __init__(self, runtime: Runtime, driver: SqliteDriver, ring: Ring | None) -> None:
        super().__init__()
        self._runtime = runtime
        self._driver = driver
        self._ring = ring
        self._urgent: deque[_Commit] = deque()
        self._usual: deque[_Commit] = deque()
        self._writing = runtime.new_lock()
        self._is_log_long = False
        self._attendant = runtime.start_attendant(self._attend, "endwell-sqlite-writer")

    async def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Commit on the caller's event loop, together with whoever is about to ask as well."""
        letter = self._post(commands)
        try:
            await self._runtime.sleep(0)  # those who are ready join; who asks all the time lets others run
            if not letter.is_taken:
                self._serve_at_once(letter)
        finally:
            self._leave_the_rest(letter)
        return await letter.answered()

    async def ask_in_parts(self, parts: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """So much that it would hold up an event loop for long: the thread does it."""
        letters = [self._post(part) for part in parts]
        self._attendant.call()
        return [await letter.answered() for letter in letters]

    async def close(self) -> None:
        """Serve what waits, then end the thread and close the connection."""
        self.is_closed = True
        self._attendant.call()
        await self._attendant.wait_ended()

    def _post(self, commands: Sequence[Command]) -> _Commit:
        self.refuse_if_nobody_serves()
        letter: _Commit = PendingCommit(commands, len(commands))
        self._line_of(letter).append(letter)
        return letter

    def _line_of(self, letter: _Commit) -> deque[_Commit]:
        is_heartbeat = letter.size == 1 and isinstance(letter.ask[0], Heartbeat)
        return self._urgent if is_heartbeat else self._usual

    def _serve_at_once(self, letter: _Commit) -> None:
        """One batch in this thread, if the letter is not in another one's; else the thread has to."""
        if self._is_log_long or not self._writing.acquire(False):
            return
        bells: set[str] = set()
        try:
            if not letter.is_taken:
                bells = self._serve(at_once=True)
                self._is_log_long = self._driver.is_log_long
        except NotAtOnceError:
            return
        finally:
            self._writing.release()
        self._ring_for(bells)

    def _leave_the_rest(self, letter: _Commit) -> None:
        if self._is_log_long or not letter.is_settled:
            self._attendant.call()

    def _attend(self) -> bool:
        while self._serve_patiently():
            pass
        return not (self.is_closed and self._close_if_nobody_waits())

    def _serve_patiently(self) -> bool:
        """One batch in the desk's thread, however long it takes. False when nobody waits any more."""
        bells: set[str] = set()
        with self._writing:
            self._is_log_long = False
            if self._somebody_waits:
                bells = self._serve(at_once=False)
        self._ring_for(bells)
        with self._writing:
            self._tend_log()
            return self._somebody_waits

    def _tend_log(self) -> None:
        try:
            self._driver.fold_log_if_long()
        except (apsw.Error, OSError) as error:  # what was committed is safe in the log
            log.warning("the write-ahead log could not be folded back: %s", error)

    def _close_if_nobody_waits(self) -> bool:
        with self._writing:
            if self._somebody_waits:
                self._attendant.call()
                return False
            self._driver.close()
            return True

    @property
    def _somebody_waits(self) -> bool:
        return bool(self._urgent or self._usual)

    def _ring_for(self, bells: set[str]) -> None:
        if self._ring is not None and bells:
            self._ring(bells)

    def _serve(self, *, at_once: bool) -> set[str]:
        """Everything that waits, up to the limit, in one transaction: whom it concerns. The lock is held."""
        letters = self._take()
        commands = [command for letter in letters for command in letter.ask]
        try:
            outcome = self._driver.run(commands, at_once=at_once)
        except NotAtOnceError:
            self._give_back(letters)
            raise
        except Exception as error:
            for letter in letters:
                letter.settle(None, error)
            deliver(letters)
            return set()
        except BaseException:  # Ctrl-C: the others' commits are not lost with it
            self._settle_interrupted(letters, self._driver.stored(commands))
            raise
        _settle(letters, outcome)
        return outcome.bells

    def _take(self) -> list[_Commit]:
        taken: list[_Commit] = []
        size = 0
        for line in (self._urgent, self._usual):
            while line and (not taken or size + line[0].size <= BATCH_LIMIT):
                letter = line.popleft()
                letter.is_taken = True
                taken.append(letter)
                size += letter.size
        return taken

    def _give_back(self, letters: Sequence[_Commit]) -> None:
        for letter in reversed(letters):
            letter.is_taken = False
            self._line_of(letter).appendleft(letter)
        self._attendant.call()

    def _settle_interrupted(self, letters: Sequence[_Commit], outcome: Outcome | None) -> None:
        if outcome is None:
            self._give_back(letters)
        else:
            _settle(letters, outcome)
            self._ring_for(outcome.bells)


def _settle(letters: Sequence[_Commit], outcome: Outcome) -> None:
    start = 0
    for letter in letters:
        letter.settle(outcome.replies[start : start + letter.size])
        start += letter.size
    deliver(letters)
