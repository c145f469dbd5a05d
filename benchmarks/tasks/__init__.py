"""Tasks of the field, on which every method is trained with the same tuning: ``python -m benchmarks.tasks``.

`task` says what a task is, `records` keeps what was measured, and every other module is one task.
"""
