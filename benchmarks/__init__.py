"""Benchmarks: ratios to other implementations and to hardware limits, measured in the same run."""

import os

# Set before torch is imported: its profiler, which measures memory, must not print between the tables.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
