"""Measurements of time and memory."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile


def median_seconds(
    functions: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, turns: int = 7
) -> dict[str, float]:
    """Median time of a call of each function.

    The functions alternate, so that other load on the machine affects all of them. In each turn, a function is called a few
    times to warm the caches, and then for at least 0.05 seconds.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    start = time.perf_counter()
    for turn in itertools.count():
        if turn > turns and time.perf_counter() - start > seconds * len(functions):
            break
        for name, function in functions.items():
            for _ in range(3 if turn == 0 or samples[name][-1] < 0.01 else 1):
                function()
            samples[name].append(_seconds_per_call(function))
    return {name: statistics.median(times) for name, times in samples.items()}


def _seconds_per_call(function: Callable[[], object]) -> float:
    begin = now = time.perf_counter()
    calls = 0
    while now - begin < 0.05:
        function()
        calls += 1
        now = time.perf_counter()
    return (now - begin) / calls


def peak_bytes(function: Callable[[], object]) -> int:
    """The peak memory of torch's CPU allocator during a call, relative to the start of the call."""
    function()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiled.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def describe() -> str:
    """One line about the machine and the versions."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} CPU thread(s), median of alternating turns"
