"""The orchestrator's service: feeds the stream, hears foreign workers, and takes care of what is left behind.

Three loops beside the PMO's own tick. None of them runs hot: a server that fails is asked ever more rarely,
and while it is away nothing is dispatched and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from endwell.doorbell.contract import EVERYTHING, Doorbell, is_rung
from endwell.errors import StoreError
from endwell.model.moments import moment
from endwell.redis_client import Refusal, Unreachable
from endwell.runtime.backoff import Backoff
from endwell.runtime.base import Runtime
from endwell.settings import Settings, masked
from endwell.store.contract import Store
from endwell.store.reclaimer import Absence
from endwell.streams.commands import StreamOrchestrator
from endwell.streams.contract import Delivery
from endwell.streams.entries import Malformed, Result
from endwell.streams.orchestrator.dead_letters import StreamDeadLetters
from endwell.streams.orchestrator.foreign import ForeignWorkers
from endwell.streams.orchestrator.publisher import Publisher
from endwell.streams.orchestrator.reclaim import StreamReclaimer
from endwell.streams.orchestrator.results import StreamResults
from endwell.streams.orchestrator.rounds import PublishRounds
from endwell.streams.protocol import PROTOCOL_VERSION, TASK
from endwell.streams.server_check import KEEPS_STREAMS, eviction_policy

log = logging.getLogger(__name__)

LEAD_SECONDS = 12.0
"""How long after an orchestrator's death another may take to feed the stream."""
LETTERS_SECONDS = 1.0
LEFT_RESULT_SECONDS = 30.0
"""After so long a result that another orchestrator has read is seen to here."""


class StreamOrchestratorService:
    """`start`, `run`, `stop`, `close`, as every part; tests call the parts' `run_once`."""

    def __init__(
        self,
        store: Store,
        bell: Doorbell,
        runtime: Runtime,
        settings: Settings,
        stream: StreamOrchestrator,
        *,
        namespace: str,
        actor: str,
        absence: Absence | None = None,
    ) -> None:
        self._store = store
        self._bell = bell
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._absence = absence
        self.stream = stream
        queue, pmo = settings.queue, settings.pmo
        again = pmo.dispatched_retry_seconds or queue.RECLAIM_INTERVAL_S
        about = {"namespace": namespace, "actor": actor}
        seconds = queue.VISIBILITY_TIMEOUT_S
        self.feed = Publisher(
            store, runtime, stream, again_seconds=again, crash_limit=pmo.crash_limit, **about
        )
        self.reclaimer = StreamReclaimer(
            store, runtime, stream, absence=absence, visibility_seconds=seconds, **about
        )
        self.foreign = ForeignWorkers(store, runtime, stream, settings, **about)
        self.rounds = PublishRounds(store, bell, runtime, settings, self.feed, namespace=namespace)
        self.letters = StreamDeadLetters(store, stream, namespace=namespace)
        self.results = StreamResults(store, stream, namespace=namespace, kept=queue.results_kept)
        self._lead_seconds = LEAD_SECONDS
        self._care_seconds = min(queue.RECLAIM_INTERVAL_S, queue.HEARTBEAT_INTERVAL_S, again / 2)
        self._ended, self._lost, self._stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ended.set()
        self._loops: list[asyncio.Task[None]] = []
        self._passing: set[asyncio.Task[None]] = set()
        self._is_leader = False
        self._led_at = -math.inf
        self._reclaimed_at = -math.inf
        self._told_at = -math.inf
        self._forget_ms = int(2000 * seconds)
        self._is_warned = False
        self.failures = 0

    @property
    def is_up(self) -> bool:
        """Whether the server answered the last time it was asked."""
        return self._is_up

    _is_up = False

    async def start(self) -> None:
        """Make the groups; a server that is not there is tried again later."""
        await self._try_to_found()
        self._unsubscribe = self._bell.subscribe(self._heard)
        loops = {
            "feed": self._feed_once,
            "results": self._hear_once,
            "care": self._care_once,
            "grants": self._revoke_once,
        }
        self._loops = [
            self._runtime.spawn(self._again_and_again(once), f"endwell-stream-{name}")
            for name, once in loops.items()
        ]

    async def close(self) -> None:
        """Stop, wherever it is: every step of it may be repeated."""
        self._stop.set()
        if self._loops:
            self._unsubscribe()
        for tasks in (self._loops, list(self._passing)):
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        await self.stream.close()

    async def _again_and_again(self, once: Callable[[], Awaitable[None]]) -> None:
        pace = Backoff(self._runtime)
        while not self._stop.is_set():
            try:
                await once()
                pace.reset()
            except (Unreachable, Refusal, StoreError) as error:
                self._note(error)
                if isinstance(error, Refusal):
                    await self._try_to_found()
                await pace.pause()
            except Exception:
                self.failures += 1
                log.exception("a round at the task stream failed")
                await pace.pause()

    async def _found(self) -> None:
        """Make what is missing. A server without our groups has forgotten what was on the streams as well."""
        if await self.stream.make_groups():
            self.feed.forgot()
            self.rounds.look_again()
        await self._publish_settings()
        await self.results.find_cursor()
        if not self._is_up:
            self._is_up = True
            log.info("the task stream at %s is there", masked(self.stream.url))
        if not self._is_warned:
            self._is_warned = True
            await self._warn_of_eviction()

    async def _publish_settings(self) -> None:
        queue = self._settings.queue
        times = {
            "VISIBILITY_TIMEOUT_S": str(queue.VISIBILITY_TIMEOUT_S),
            "HEARTBEAT_INTERVAL_S": str(queue.HEARTBEAT_INTERVAL_S),
        }
        await self.stream.publish_settings({"protocol": PROTOCOL_VERSION, **times})

    async def _try_to_found(self) -> None:
        try:
            await self._found()
        except (Unreachable, Refusal, StoreError) as error:
            self._note(error)

    async def _warn_of_eviction(self) -> None:
        policy = await eviction_policy(self.stream.connection)
        if policy is not None and policy not in KEEPS_STREAMS:
            log.warning(
                "the Redis server at %s may drop streams when its memory is full (maxmemory-policy %s); "
                "nothing gets lost by it, but work is delayed: set noeviction",
                masked(self.stream.url),
                policy,
            )

    def _note(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, Unreachable):
            if self._is_up:
                log.warning("no task stream at %s: %s", masked(self.stream.url), error)
            self._is_up = False
        else:
            log.warning("the task stream: %s", error)

    def _heard(self, topics: frozenset[str]) -> None:
        if is_rung(f"ended:{self._namespace}", topics):
            self._ended.set()
        held = f"held:{self._namespace}:"
        if EVERYTHING in topics or any(topic.startswith(held) for topic in topics):
            self._lost.set()
        self.rounds.heard(topics)

    async def _feed_once(self) -> None:
        if await self._leads():
            await self.rounds.run_once()
        else:
            await self._runtime.wait(self._stop, self._lead_seconds / 3)

    async def _leads(self) -> bool:
        now = self._runtime.clock.monotonic()
        if now - self._led_at >= self._lead_seconds / 3:
            lead = await self.stream.lead(self._lead_seconds)
            if lead == "new":
                self.feed.forgot()  # somebody else may have made the groups again
                self._reclaimed_at = self._told_at = -math.inf
                self.rounds.look_again()
                self._ended.set()
            self._is_leader = lead != "other"
            self._led_at = now
            if not self._is_up:
                await self._found()
        return self._is_leader

    async def _hear_once(self) -> None:
        await self.hear(await self.stream.next_results())

    async def hear(self, results: list[Result | Malformed]) -> None:
        """What foreign workers say; acknowledged when the store has it."""
        if not results:
            return
        good = [each for each in results if isinstance(each, Result)]
        bad = [each for each in results if isinstance(each, Malformed)]
        await self.stream.bury(bad, moment(await self._store.now()), is_result=True)
        await self.stream.results_read([each.entry_id for each in good if each.is_published])
        said = [each for each in good if not each.is_published]
        passed = [result for result in said if result.status == "passed"]
        for result in passed + await self.foreign.hear(said):
            await self._passed(result)
        await self.stream.results_done([each.entry_id for each in said])

    async def _passed(self, result: Result) -> None:
        """Put on the stream again, unless nobody has ever served such a tool: that is a dead letter."""
        entry = (await self.stream.deliveries((result.message_id,))).get(result.message_id)
        named = (result.task_id, result.turn_id, result.epoch)
        if entry is None or (entry.task_id, entry.turn_id, entry.epoch) != named:
            return  # only the entry that was passed is touched, whatever else the message names
        if await self._store.agent(self._namespace, entry.agent) is None:
            await self._bury_unknown(entry)
            return
        passing = self._runtime.spawn(self._pass_again(result), "endwell-stream-passed")
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)
        await self.foreign.clear_served(result)

    async def _pass_again(self, result: Result) -> None:
        """If that fails, the offer still stands, and is put again when it has stood for a while."""
        try:
            await self.feed.passed(result.task_id, (result.turn_id, result.epoch))
        except (Unreachable, Refusal, StoreError) as error:
            self._note(error)

    async def _bury_unknown(self, entry: Delivery) -> None:
        bad = Malformed(
            stream=TASK,
            message_id=entry.message_id,
            reason="unknown_tool",
            problem=f"no worker has ever served the tool {entry.agent}",
            shown={
                "task_id": entry.task_id,
                "tool_name": entry.agent,
                "payload": entry.payload.decode(),
            },
        )
        await self.stream.bury((bad,), moment(self._runtime.clock.now_us()))

    async def _revoke_once(self) -> None:
        """A turn was taken from a session: its worker, if it is foreign, learns it from its grant."""
        if await self._runtime.wait(self._lost, self._care_seconds):
            self._lost.clear()
            if self._is_leader:
                await self.foreign.grants.sweep()

    async def _care_once(self) -> None:
        await self.care()
        if await self._runtime.wait(self._ended, self._care_seconds):
            await self._runtime.wait(self._stop, min(self._care_seconds, LETTERS_SECONDS))  # for others too

    async def care(self) -> None:
        """Everything that is looked after now and then, by the leader alone."""
        has_ended = self._ended.is_set()
        self._ended.clear()
        if not self._is_leader:
            return
        now = self._runtime.clock.monotonic()
        if has_ended or now - self._told_at >= self._settings.queue.RECLAIM_INTERVAL_S:
            self._told_at = now
            await self.letters.run_once()
            await self.results.run_once()
        if now - self._reclaimed_at < self._care_seconds:
            return
        self._reclaimed_at = now
        await self._found()
        await self.hear(await self.stream.left_results(int(LEFT_RESULT_SECONDS * 1000)))
        await self.foreign.renew()
        if self._absence is None or self._absence.is_over:
            await self.reclaimer.run_once(moment(self._runtime.clock.now_us()))
        await self.feed.heal()
        await self._forget_dead()
        await self.stream.trim(results_kept=self._settings.queue.results_kept)

    async def _forget_dead(self) -> None:
        """Consumers that have nothing and were not heard of for long; whoever comes back is known again."""
        found = await self.stream.consumers()
        silent = [name for name, pending, idle in found if not pending and idle >= self._forget_ms]
        if not silent:
            return
        opened = await self._store.open_sessions(self._namespace)
        live = tuple(session.name.encode() for session in opened)
        for name in silent:
            if not name.startswith(live):
                await self.stream.forget_consumer(name)
