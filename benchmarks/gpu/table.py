"""GPU timers, and the lines of the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch


class Line(NamedTuple):
    """One line of a table.

    Args:
        what: what was measured.
        measured: the figure, with its unit.
        wanted: the target, or an empty string.
        is_met: whether the target is met; None without a target.
        floor: bytes and operations, and a lower bound of their time.
        gap: why the time is longer than the floor.
    """

    what: str
    measured: str
    wanted: str = ""
    is_met: bool | None = None
    floor: str = ""
    gap: str = ""


def graph_milliseconds(function: Callable[[], object], *, calls: int = 20, turns: int = 15) -> float:
    """Median GPU time of a call without launch overhead: many calls captured in one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            function()
    return _median(graph.replay, calls, turns)


def milliseconds(function: Callable[[], object], *, calls: int = 1, turns: int = 25) -> float:
    """Median wall-clock time of a call, including launches and synchronisation."""
    for _ in range(3):
        function()

    def several() -> None:
        for _ in range(calls):
            function()

    return _median(several, calls, turns)


def _median(run: Callable[[], object], calls: int, turns: int) -> float:
    times = []
    run()
    for _ in range(turns):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    median: float = statistics.median(times)
    return median
