"""Walks of the task machine: over every state of a small world, and at random in a larger one.

- The walk over every state: `worlds` lists the worlds, `world` is one of them with everything that may be
  tried, `graph` and `canonical` keep its states, `explore` walks (`python -m tests.machine.walk.explore`).
- `step` gives one command to one task. `scene` is a task with its effects and inbox.
- What must hold at every step: `invariants`, and the `rules_of_*`, which `steps` checks.
  `cells` says which commands can meet which status. `violation` and `telling` describe a path to a violation.
- The random walk: `random_world`, used by test_stateful.
"""
