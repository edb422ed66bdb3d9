"""The task machine: examples, and walks over its states.

- Examples are in this folder: `stages` makes tasks by the stage that they are in. `planting` plants defects.
- `walk` walks over every state of a small world, and at random in a larger one.
- `test_*_exactly.py` pin every field of what the machine writes.
- `lifecycle` makes docs/lifecycle.md from the machine's tables.
"""
