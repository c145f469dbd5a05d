"""Many cases of every property: ``python -m tests.properties.fuzz --cases 100000 --seed 0``.

Prints what was tried, and every property that does not hold, with its smallest failing case as hypothesis reports it; the
exit status is the number of these properties. With the same seed and number of cases, the cases are the same.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Sequence

import hypothesis
from hypothesis import strategies as st

from tests.properties.drawing import Draw
from tests.properties.every import PROPERTIES
from tests.properties.registry import Property, summary

#: A line of progress is printed after this many seconds.
_EVERY = 20.0


class Progress:
    """Counts cases, and prints a line now and then."""

    def __init__(self, name: str, n_cases: int) -> None:
        self.name, self.n_cases, self.n = name, n_cases, 0
        self.started = self.printed = time.monotonic()

    def count(self) -> None:
        """Count a case."""
        self.n += 1
        now = time.monotonic()
        if now - self.printed > _EVERY:
            self.printed = now
            print(f"  {self.name}: {self.n} of {self.n_cases}", flush=True)  # noqa: T201


def run(name: str, each: Property, n_cases: int, seed: int) -> tuple[int, float, str | None]:
    """Try cases of a property; returns how many, the seconds, and what went wrong."""
    progress = Progress(name, n_cases)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n_cases,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        print_blob=True,
    )
    @hypothesis.given(st.data())
    def attempt(data: st.DataObject) -> None:
        progress.count()
        each.check(Draw(data))

    reason = None
    try:
        attempt()
    except Exception:
        reason = traceback.format_exc(limit=-3)
    return progress.n, time.monotonic() - progress.started, reason


def shares(n_cases: int, names: Sequence[str]) -> dict[str, int]:
    """The number of cases of each property, in proportion to its weight."""
    total = sum(PROPERTIES[name].weight for name in names)
    return {name: max(1, -(-n_cases * PROPERTIES[name].weight // total)) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="the number of cases of all properties together")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the cases")
    parser.add_argument("--only", nargs="*", choices=sorted(PROPERTIES), help="the properties to try; by default all")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, message="`torch.jit")
    found = {}
    for name, n_cases in shares(options.cases, options.only or list(PROPERTIES)).items():
        print(f"{name}: {summary(PROPERTIES[name].check)}", flush=True)  # noqa: T201
        found[name] = run(name, PROPERTIES[name], n_cases, options.seed)
        if found[name][2] is not None:
            print(found[name][2], flush=True)  # noqa: T201
    print(f"\n{'property':56} {'cases':>8} {'seconds':>8}")  # noqa: T201
    for name, (n, seconds, reason) in found.items():
        print(f"{name:56} {n:8} {seconds:8.1f} {'' if reason is None else 'FAILED'}")  # noqa: T201
    n_failed = sum(reason is not None for _, _, reason in found.values())
    n_all, seconds = sum(n for n, _, _ in found.values()), sum(seconds for _, seconds, _ in found.values())
    print(f"{n_all} cases of {len(found)} properties with seed {options.seed} in {seconds:.0f} s, {n_failed} failed")  # noqa: T201
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
