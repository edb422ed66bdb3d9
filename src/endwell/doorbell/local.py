"""The doorbell of one machine: Unix datagrams between the processes that share one SQLite file.

Where sockets are not available (no Unix sockets, an untrusted temporary directory), it still rings within
the process, logs the reason once, and reports it in its health; other processes then find work by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Collection
from pathlib import Path

from endwell.doorbell.coalesce import Coalescer
from endwell.doorbell.contract import EVERYTHING, BellHealth, OnRing, Unsubscribe
from endwell.doorbell.peers import Peers, bind_socket, meeting_directory
from endwell.runtime import Runtime
from endwell.runtime.processes import process_id

LARGEST_DATAGRAM = 2000
"""Bytes of topics in one ring; more is sent as `EVERYTHING`. macOS takes no more than 2048."""

_CROWDED = 8
"""Unread rings that count as a flood: the system may drop rings from the tenth on (on Linux)."""
_MOST_READS = 64
_BIND_TRIES = 5

log = logging.getLogger(__name__)


class LocalDoorbell:
    """Rings every process that has opened a bell for the same file; `directory_key` is the file's path."""

    def __init__(self, directory_key: str, *, runtime: Runtime, root: str | Path | None = None) -> None:
        self._key = directory_key
        self._runtime = runtime
        self._root = root
        self._lock = runtime.new_lock()
        self._coalescer = Coalescer(runtime.new_lock())
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._peers: Peers | None = None
        self._last_error: str | None = None

    async def open(self) -> None:
        if self._pid == process_id():
            return
        self._pid = process_id()
        self._loop = asyncio.get_running_loop()
        # New locks: a forked child may inherit a lock that is held for ever.
        self._lock = self._runtime.new_lock()
        self._coalescer.start(self._loop, self._runtime.new_lock())
        try:
            self._join_directory(self._loop)
        except OSError as error:
            self._last_error = str(error)
            log.warning("doorbell rings within this process only: %s", error)

    async def close(self) -> None:
        is_ours, self._pid = self._pid == process_id(), None
        if not is_ours:  # never opened, or a forked child that holds its parent's bell
            return
        self._coalescer.stop()
        with self._lock:
            bound, self._socket = self._socket, None
            peers, self._peers = self._peers, None
        if peers is not None:
            peers.close()
        if bound is not None:
            self._remove_socket(bound)

    def ring(self, topics: Collection[str]) -> None:
        # Before any lock: in a forked child a lock may be held by a thread that does not exist there.
        if self._pid != process_id():
            return
        try:
            self._coalescer.add(topics)
            with self._lock:
                if self._peers is not None and topics:
                    self._peers.send(pack_topics(topics))
        except Exception as error:
            self._on_error(error)

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        return self._coalescer.subscribe(callback)

    def health(self) -> BellHealth:
        # A cleaner of the temporary directory may have removed the socket.
        is_ours = self._pid == process_id() and self._socket is not None
        is_reachable = is_ours and self._path is not None and self._path.exists()
        return BellHealth(kind="local", connected=is_reachable, last_error=self._last_error)

    def _join_directory(self, loop: asyncio.AbstractEventLoop) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise OSError(errno.EAFNOSUPPORT, "this platform has no Unix sockets")
        directory = meeting_directory(self._key, self._root)
        bound, name = self._bind_socket(directory)
        peers = Peers(directory, name, self._runtime.clock)
        peers.refresh()  # also removes the sockets of killed processes
        loop.add_reader(bound.fileno(), self._receive, bound)
        with self._lock:
            self._socket, self._path, self._peers = bound, directory / name, peers
        self._last_error = None

    def _bind_socket(self, directory: Path) -> tuple[socket.socket, str]:
        for tries_left in reversed(range(_BIND_TRIES)):
            name = self._runtime.ids.new()[-12:]
            try:
                return bind_socket(directory, name), name
            except OSError as error:
                # A process that leaves removes the empty directory; seeded ids may repeat.
                if error.errno not in (errno.ENOENT, errno.EADDRINUSE) or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _remove_socket(self, bound: socket.socket) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(bound.fileno())
        bound.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # fails, rightly, while it has other sockets

    def _receive(self, bound: socket.socket) -> None:
        topics: set[str] = set()
        reads = 0
        try:
            while reads < _MOST_READS:
                topics.update(unpack_topics(bound.recv(2 * LARGEST_DATAGRAM)))
                reads += 1
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_error(error)
        if reads >= _CROWDED:
            topics.add(EVERYTHING)
        self._coalescer.add(topics)

    def _on_error(self, error: Exception) -> None:
        if self._last_error is None:
            log.warning("doorbell trouble; polling still finds the work: %s", error)
        self._last_error = str(error)


def pack_topics(topics: Collection[str]) -> bytes:
    try:
        packed = "\n".join(topics).encode()
    except UnicodeEncodeError:
        return EVERYTHING.encode()
    return packed if len(packed) <= LARGEST_DATAGRAM else EVERYTHING.encode()


def unpack_topics(datagram: bytes) -> list[str]:
    return [topic for topic in datagram.decode(errors="replace").split("\n") if topic]
