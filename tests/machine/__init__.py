"""The task machine: examples, a walk over every state of a small world, and random walks in a larger one.

Map of the modules beside the tests:

- Examples: `stages` makes tasks by the stage that they are in. `step` gives one command to one task. `scene`
  is a task with its effects and inbox. `full` is a task with a value in every column.
- The walk over every state: `worlds` lists the worlds, `world` is one of them with everything that may be
  tried, `graph` and `canonical` keep its states, `explore` walks (`python -m tests.machine.explore`).
- What must hold in the walk: `invariants`, and the `rules_of_*`, which `steps` checks at every step.
  `cells` says which commands can meet which status. `violation` and `telling` describe a path to a violation.
- The random walk: `random_world`, used by test_stateful. `planting` plants defects that both walks must find.
- `test_*_exactly.py` pin every field of what the machine writes: they notice every change, intended ones too.
"""
