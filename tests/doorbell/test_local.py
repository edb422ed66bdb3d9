"""The local doorbell: the contract, and what is special about sockets in a directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from endwell.doorbell import EVERYTHING, Doorbell, LocalDoorbell
from endwell.doorbell.local import LARGEST_DATAGRAM
from endwell.doorbell.peers import meeting_directory
from endwell.runtime import Runtime, SeededIds
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear, StartOther, said
from tests.support.manual_clock import ManualClock


@pytest.fixture
def root() -> Iterator[Path]:
    """A temporary directory with a path short enough for sockets, unlike the test's own."""
    path = Path(tempfile.mkdtemp(prefix="bell-"))
    yield path
    shutil.rmtree(path)


class TestLocalDoorbell(DoorbellContract):
    """Bells for one imaginary SQLite file."""

    @pytest.fixture(autouse=True)
    def _place(self, root: Path) -> None:
        self.root = root
        self.key = str(root / "endwell.db")
        self.directory = meeting_directory(self.key, root)

    def make_bell(self) -> LocalDoorbell:
        return LocalDoorbell(self.key, runtime=Runtime.system(), root=self.root)

    def recipe(self) -> str:
        return (
            "from endwell.doorbell import LocalDoorbell; from endwell.runtime import Runtime\n"
            f"bell = LocalDoorbell({self.key!r}, runtime=Runtime.system(), root={str(self.root)!r})"
        )

    def sockets(self) -> list[str]:
        return os.listdir(self.directory)

    async def test_socket_of_a_killed_listener_is_removed_by_the_next_ring(
        self, bell: Doorbell, other_process: StartOther
    ) -> None:
        child = other_process("listen")
        assert await said(child) == ["ready"]
        bell.ring(["a"])
        assert len(self.sockets()) == 2
        child.kill()
        await asyncio.to_thread(child.wait, PATIENCE)
        assert len(self.sockets()) == 2
        bell.ring(["b"])
        assert len(self.sockets()) == 1

    async def test_socket_of_a_killed_listener_is_removed_by_the_next_open(
        self, other_process: StartOther
    ) -> None:
        child = other_process("listen")
        assert await said(child) == ["ready"]
        child.kill()
        await asyncio.to_thread(child.wait, PATIENCE)
        bell = self.make_bell()
        await bell.open()
        assert len(self.sockets()) == 1
        await bell.close()

    async def test_frozen_listener_does_not_silence_others(
        self, bell: Doorbell, other_bell: Doorbell, other_process: StartOther
    ) -> None:
        child = other_process("listen")
        assert await said(child) == ["ready"]
        child.freeze()
        for _ in range(5000):
            bell.ring(["work:" + "x" * 1000])
        ear = Ear(other_bell)
        bell.ring(["heard"])
        await ear.wait_for("heard")
        child.thaw()
        # What its full queue lost, it cannot know; so it must look everywhere.
        while EVERYTHING not in (rung := await said(child)):
            assert rung, "the listener ended"

    async def test_peer_that_joins_within_a_clock_tick_is_found(self, bell: Doorbell) -> None:
        others = [self.make_bell() for _ in range(20)]
        for number, other in enumerate(others):
            await other.open()
            ear = Ear(other)
            bell.ring([f"welcome:{number}"])
            await ear.wait_for(f"welcome:{number}")
        for other in others:
            await other.close()

    async def test_a_ring_too_long_for_a_datagram_is_sent_as_everything(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear = Ear(other_bell)
        bell.ring(["x" * LARGEST_DATAGRAM, "y"])
        await ear.wait_for("y")
        assert ear.calls == [frozenset({EVERYTHING})]

    async def test_directories_and_sockets_are_private(self, bell: Doorbell) -> None:
        (name,) = self.sockets()
        modes = [stat.S_IMODE(path.lstat().st_mode) for path in (self.directory.parent, self.directory)]
        assert modes == [0o700, 0o700]
        assert stat.S_IMODE((self.directory / name).lstat().st_mode) == 0o600

    async def test_last_bell_to_close_removes_the_directory(self) -> None:
        first, second = self.make_bell(), self.make_bell()
        await first.open()
        await second.open()
        await first.close()
        assert len(self.sockets()) == 1
        await second.close()
        assert not self.directory.exists()

    async def test_two_names_of_one_file_meet(self) -> None:
        (self.root / "real").mkdir()
        (self.root / "alias").symlink_to(self.root / "real")
        real = meeting_directory(str(self.root / "real" / "endwell.db"), self.root)
        assert meeting_directory(str(self.root / "alias" / "endwell.db"), self.root) == real
        assert meeting_directory(str(self.root / "other.db"), self.root) != real

    async def test_processes_with_the_same_seed_bind_different_names(self) -> None:
        runtimes = [Runtime.system(ids=SeededIds(1), clock=ManualClock()) for _ in range(2)]
        bells = [LocalDoorbell(self.key, runtime=runtime, root=self.root) for runtime in runtimes]
        for bell in bells:
            await bell.open()
        ear = Ear(bells[1])
        bells[0].ring(["a"])
        await ear.wait_for("a")
        for bell in bells:
            await bell.close()

    async def test_a_foreign_file_in_the_directory_is_left_alone(self, bell: Doorbell) -> None:
        (self.directory / "note").write_text("mine")
        bell.ring(["a"])
        assert (self.directory / "note").read_text() == "mine"
        (self.directory / "note").unlink()

    async def test_removed_socket_shows_in_the_health(self, bell: Doorbell) -> None:
        shutil.rmtree(self.directory)
        bell.ring(["a"])
        assert not bell.health().connected

    async def test_a_forked_child_does_not_use_its_parents_bell(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear = Ear(other_bell)
        child = os.fork()
        if child == 0:
            bell.ring(["from the child"])
            os._exit(0 if not bell.health().connected else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        bell.ring(["from the parent"])
        await ear.wait_for("from the parent")
        assert not ear.has_heard("from the child")

    async def _rings_within_the_process_only(self, why: str, caplog: pytest.LogCaptureFixture) -> None:
        bell = self.make_bell()
        ear = Ear(bell)
        await bell.open()
        bell.ring(["a"])
        await ear.wait_for("a")
        assert not bell.health().connected
        assert why in (bell.health().last_error or "")
        assert caplog.text.count("within this process only") == 1
        await bell.close()

    async def test_symbolic_link_is_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        (self.root / "elsewhere").mkdir(mode=0o700)
        self.directory.parent.symlink_to(self.root / "elsewhere")
        await self._rings_within_the_process_only("not a directory of our own", caplog)

    async def test_directory_of_another_user_is_refused(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.directory.parent.mkdir()
        uid = os.getuid()
        asked = iter([uid])  # the first question names the directory, the next ones check its owner
        monkeypatch.setattr(os, "getuid", lambda: next(asked, uid + 1))
        await self._rings_within_the_process_only("belongs to another user", caplog)

    async def test_own_directory_with_loose_permissions_is_made_private(self) -> None:
        self.directory.parent.mkdir()
        self.directory.parent.chmod(0o777)
        bell = self.make_bell()
        await bell.open()
        assert stat.S_IMODE(self.directory.parent.stat().st_mode) == 0o700
        await bell.close()

    async def test_a_path_too_long_for_a_socket_is_noticed(self, caplog: pytest.LogCaptureFixture) -> None:
        self.root = self.root / ("long" * 30)
        await self._rings_within_the_process_only("too long", caplog)

    async def test_a_missing_temporary_directory_is_noticed(self, caplog: pytest.LogCaptureFixture) -> None:
        self.root = self.root / "missing"
        await self._rings_within_the_process_only("No such file", caplog)

    async def test_a_platform_without_unix_sockets_rings_within_the_process(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr("socket.AF_UNIX")
        await self._rings_within_the_process_only("no Unix sockets", caplog)
