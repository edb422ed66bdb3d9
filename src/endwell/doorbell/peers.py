"""The directory in which the processes of one store find each other's sockets.

`<temporary directory>/endwell-<uid>/<hash of the store's path>/`, private to the user. A directory of another
user, or a symbolic link, is refused: an attacker could have put it there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from endwell.runtime import Clock

LONGEST_PATH = 100
"""Bytes of a socket's path; the systems' own limits begin at 104."""

_SETTLED_NS = 50_000_000
"""Two changes of a directory within one tick of the file system's clock show the same time."""


def meeting_directory(store_path: str, root: str | Path | None = None) -> Path:
    """The directory of the processes that use this store, the same for every name of the file."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(store_path))).hexdigest()
    return Path(root or tempfile.gettempdir()) / f"endwell-{os.getuid()}" / digest[:12]


def make_private(directory: Path) -> None:
    """Make the directory and its parent, or refuse them with an OSError."""
    for path in (directory.parent, directory):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory of our own", str(path))
        if found.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(path))
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)


def bind_socket(directory: Path, name: str) -> socket.socket:
    """Bind a socket that other processes find under `name`."""
    path = os.fsencode(directory / name)
    if len(path) >= LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, "the temporary directory's path is too long", str(directory))
    make_private(directory)
    bound = _datagram_socket()
    try:
        bound.bind(path)
        os.chmod(path, 0o600)
    except BaseException:
        bound.close()
        raise
    return bound


class Peers:
    """The sockets of the other processes. Not thread-safe: the bell holds a lock.

    We send to each peer through a socket of its own, because unread datagrams count against their sender:
    with a shared socket, one frozen peer would silence the bell for all.
    """

    def __init__(self, directory: Path, own_name: str, clock: Clock) -> None:
        self._directory = directory
        self._own_name = own_name
        self._clock = clock
        self._sockets: dict[str, socket.socket] = {}
        self._seen: tuple[int, int] | None = None

    def send(self, datagram: bytes) -> None:
        """Send to every peer; one whose queue is full is awake already."""
        self.refresh()
        for name, peer in list(self._sockets.items()):
            try:
                peer.send(datagram)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    self._drop(name)
                    _remove_if_dead(self._directory / name, error)

    def refresh(self) -> None:
        """Connect to new peers and drop those that have gone, if the directory has changed."""
        try:
            found = os.stat(self._directory)
            seen = (found.st_ino, found.st_mtime_ns)
            if seen == self._seen:
                return
            names = set(os.listdir(self._directory)) - {self._own_name}
        except OSError:
            self.close()
            return
        is_settled = self._clock.now_us() * 1000 - found.st_mtime_ns > _SETTLED_NS
        self._seen = seen if is_settled else None
        for gone in self._sockets.keys() - names:
            self._drop(gone)
        for new in names - self._sockets.keys():
            self._connect(new)

    def close(self) -> None:
        for name in list(self._sockets):
            self._drop(name)

    def _connect(self, name: str) -> None:
        path = self._directory / name
        peer = _datagram_socket()
        try:
            peer.connect(os.fsencode(path))
        except OSError as error:
            peer.close()
            _remove_if_dead(path, error)
        else:
            self._sockets[name] = peer

    def _drop(self, name: str) -> None:
        self._sockets.pop(name).close()
        self._seen = None


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _remove_if_dead(path: Path, error: OSError) -> None:
    # A name is never used twice, so a socket that refuses belongs to a process that has ended.
    if error.errno != errno.ECONNREFUSED:
        return
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
