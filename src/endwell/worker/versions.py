"""Whether a task may go on under the code that this worker has."""

from __future__ import annotations

from endwell.errors import VersionMismatch
from endwell.model.inside import inside_of
from endwell.model.task import Task
from endwell.worker.agents import Agent


def refuse_other_version(agent: Agent, task: Task) -> None:
    """Steps are found by identity under any version, unless the agent wants none of another's."""
    recorded = inside_of(task).version  # ours, as long as no step is recorded
    if agent.on_version_change == "refuse" and recorded != agent.version:
        raise VersionMismatch(
            f"version {recorded or 'without a name'} of {agent.name} recorded the steps of task "
            f"{task.id}, and this is version {agent.version or 'without a name'}",
            hint="serve it with the old version, or say on_version_change='continue'",
            task_id=task.id,
        )
