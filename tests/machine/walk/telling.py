"""Commands and tasks as one reads them in the path to a violation."""

from __future__ import annotations

from endwell.model import commands as c
from tests.machine.walk.canonical import NOW
from tests.machine.walk.scene import Scene
from tests.machine.walk.world import TICK

TOLD = ("attempt_id", "session_id", "reason", "cooldown", "tool_call_id", "approval_id", "message_id")
TOLD_OF_EFFECTS = ("key", "args_hash", "verdict", "holder_gone", "may_repeat")


def describe(command: c.TaskCommand) -> str:
    """What is not at its default."""
    told = {name: getattr(command, name, None) for name in (*TOLD, *TOLD_OF_EFFECTS)}
    told["calls"] = tuple((w.tool_call_id, w.within // TICK) for w in getattr(command, "calls", ()))
    told["error"] = getattr(getattr(command, "error", None), "code", None)
    told["by"] = command.actor if command.actor != "bob" else None
    return f"{type(command).__name__}({', '.join(f'{k}={v}' for k, v in told.items() if v)})"


def describe_scene(scene: Scene) -> str:
    """Status, counters and clock of the task, what it waits for, and what lies beside it."""
    task = scene.task
    if task is None:
        return "no task"
    counters = f"retry {task.retry_count} dispatch {task.dispatch_count} crash {task.crash_count}"
    clock = "no clock" if task.clock_at is None else f"{task.clock_rule} in {(task.clock_at - NOW) // TICK}"
    waits = [f"{w.tool_call_id}:{w.wait_status}" for w in scene.waits]
    effects = [f"{effect.key} is {effect.status} by {effect.attempt_id}" for effect in scene.effects]
    inbox = [f"<{message.id}>" for message in scene.inbox]
    return f"{task.status} ({'; '.join([counters, clock, *waits, *effects, *inbox])})"
