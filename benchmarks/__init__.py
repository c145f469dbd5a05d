"""Benchmarks: ratios to peers and physical limits measured in the same run."""

import os

# Before torch is imported: its profiler, which measures the memory, is not to write between the tables.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
