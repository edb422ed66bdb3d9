"""Foreign workers sign off, and other clients of the server forge entries."""

from __future__ import annotations

from typing import Final

from endwell.runtime.virtual.scheduler import Dice
from endwell.streams.protocol import RESULT, TASK
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.of_queues import on_foreign, put_entry
from endwell.testing.faults.registry import fault
from endwell.testing.oracle.of_foreign import FORGED
from endwell.testing.simulation import Simulation

_RUNNING: Final = """SELECT t.id, t.turn_id, t.epoch, t.attempt_id, s.name FROM tasks t
JOIN sessions s ON s.id = t.session_id WHERE t.status = 'running' ORDER BY t.id"""
_READY: Final = """SELECT id, agent, coalesce(turn_id, id || '.t' || (turn_number + 1)), epoch + 1 FROM tasks
WHERE status = 'queued' AND run_at <= ? ORDER BY id"""


@fault(weight=4, needs="queue")
def foreign_worker_signs_off(sim: Simulation, dice: Dice) -> None:
    """A foreign worker leaves in an orderly way while it holds turns."""

    def act(member: ClusterMember) -> None:
        if member.foreign is None:
            return
        sim.count_fault("foreign_worker_signs_off", member.name, f"held {member.held_count}")
        fields = (b"status", b"leaving", b"worker_id", member.foreign.name.encode())
        put_entry(sim, RESULT.encode(), list(fields))
        sim.kill(member, down_seconds=dice.choice((2, 60)))

    on_foreign(sim, act)


@fault(weight=4, needs="queue")
def stranger_forges_results(sim: Simulation, dice: Dice) -> None:
    """A client of the server reports on running turns, with their true attempts and under other names."""

    def try_to_act() -> bool:
        rows = sim.view.query_rows(_RUNNING)
        for task_id, turn_id, epoch, attempt, holder in rows:
            status = dice.choice(("succeeded", "failed", "returned", "progress"))
            is_own = "." in attempt and ":" not in attempt
            name = dice.choice(("mallory-1", holder) if is_own else ("mallory-1",))
            sim.count_fault("stranger_forges_results", "redis", f"{status} of {task_id} as {name}")
            said = {"task_id": task_id, "status": status, "turn": turn_id, "epoch": epoch, "worker_id": name}
            said |= {"message_id": "1-1", "attempt": attempt, "output": f'"{FORGED}"', "error": FORGED}
            said |= {"note": FORGED}
            put_entry(sim, RESULT.encode(), _as_fields(said))
        return bool(rows)

    sim.retry_until(try_to_act, every=0.5)


@fault(weight=3, needs="queue")
def stranger_forges_tool_names(sim: Simulation, dice: Dice) -> None:
    """A client of the server offers queued tasks to workers that do not serve them."""

    def try_to_act() -> bool:
        rows = sim.view.query_rows(_READY, (sim.cluster.scheduler.now_us,))
        for task_id, agent, turn_id, epoch in rows[:5]:
            tool = "job" if agent == "abroad" else "abroad"
            sim.count_fault("stranger_forges_tool_names", "redis", f"{task_id} of {agent} for {tool}")
            said = {"task_id": task_id, "tool_name": tool, "payload": "{}", "turn": turn_id, "epoch": epoch}
            put_entry(sim, TASK.encode(), _as_fields(said))
        return bool(rows)

    sim.retry_until(try_to_act, every=0.05)


def _as_fields(said: dict[str, object]) -> list[bytes]:
    return [str(part).encode() for pair in said.items() for part in pair]
