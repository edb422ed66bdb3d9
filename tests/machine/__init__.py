"""The task machine: examples, every field of what it writes, and walks over its states.

- Examples are in this folder: `stages` makes tasks by the stage that they are in, `effects` tasks with an
  effect. `planting` plants defects.
- `walk` walks over every state of a small world, and at random in a larger one.
- `fields` pins every field of what the machine writes.
- `lifecycle` makes docs/lifecycle.md from the machine's tables.
"""
