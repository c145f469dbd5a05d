"""Run the tests in the wheel of the `entmax` package against sparsum: ``python -m tests.peers.entmax_suite``.

The tests import `entmax`, and get `tests.peers.entmax_adapter`. Those without a counterpart are listed here, and counted.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from typing import NamedTuple

import pytest
import torch

from tests.peers import entmax_adapter

MODULES = ("entmax", "entmax.activations", "entmax.losses", "entmax.root_finding")


class Group(NamedTuple):
    """Tests whose names match a pattern as a whole."""

    pattern: str
    n_tests: int
    reason: str


WITHOUT_COUNTERPART = (
    Group(r"test_losses\.py::.*NormmaxBisectLoss\]", 6, "the loss of normmax"),
    Group(r"test_root_finding\.py::test_normmax.*", 7, "normmax"),
    Group(r"test_root_finding\.py::test_budget_grad_multiple_k", 1, "normmax, which it calls in spite of its name"),
    Group(r"test_root_finding\.py::test_entmax_grad\[0\..*\]", 3, "alpha < 1, an error here"),
    Group(r"test_topk\.py::test_entmax_topk.*", 9, "k as a hint to entmax15, which takes no k here"),
)
ALPHA_FROM_ZERO = Group(
    r"test_root_finding\.py::test_(entmax_correct_multiple_alphas|entmax_grad_multiple_alphas|arbitrary_dimension.*)",
    10,
    "with alpha + 1 for alpha: they draw it from 0.05 on",
)


class Suite:
    """A plugin of pytest: leaves out tests, makes the others repeatable, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[Group] = Counter()
        self.outcomes: Counter[str] = Counter()

    def pytest_pycollect_makemodule(self) -> None:
        """Modules draw scores when they are imported."""
        torch.manual_seed(0)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect what has no counterpart."""
        self.counts.update(group for item in items if (group := _group_of(item)))
        items[:] = [item for item in items if _group_of(item) not in WITHOUT_COUNTERPART]

    @pytest.fixture(autouse=True)
    def _repeatable(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        if _group_of(request.node) is ALPHA_FROM_ZERO:
            monkeypatch.setattr(request.module, "entmax_bisect", _entmax_from_zero)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests that passed, and those that failed anywhere."""
        if report.when == "call" or report.failed:
            self.outcomes[report.outcome] += 1

    def summary(self) -> str:
        """How many tests there are of each kind."""
        left_out = sum(self.counts[group] for group in WITHOUT_COUNTERPART)
        lines = [f"{self.outcomes['passed']} passed, {self.outcomes['failed']} failed, {left_out} without a counterpart:"]
        lines += [f"  {self.counts[group]:2} {group.reason}" for group in WITHOUT_COUNTERPART]
        return "\n".join([*lines, f"{self.counts[ALPHA_FROM_ZERO]} of those that ran: {ALPHA_FROM_ZERO.reason}"])

    def misses(self) -> list[str]:
        """Groups of another size than listed: the package has other tests than these lists were made for."""
        groups = [*WITHOUT_COUNTERPART, ALPHA_FROM_ZERO]
        return [
            f"{group.pattern}: {self.counts[group]} tests, not {group.n_tests}"
            for group in groups
            if self.counts[group] != group.n_tests
        ]


def _group_of(item: pytest.Item) -> Group | None:
    groups = (*WITHOUT_COUNTERPART, ALPHA_FROM_ZERO)
    return next((group for group in groups if re.fullmatch(group.pattern, item.nodeid)), None)


def _entmax_from_zero(x: torch.Tensor, alpha: float | torch.Tensor, dim: int = -1) -> torch.Tensor:
    return entmax_adapter.entmax_bisect(x, alpha + 1, dim)


def main() -> int:
    """Run the tests from a folder of their own, without the package around them; the status is that of pytest."""
    package = importlib.metadata.distribution("entmax")
    sys.modules.update(dict.fromkeys(MODULES, entmax_adapter))
    suite = Suite()
    with tempfile.TemporaryDirectory() as folder:
        for file in package.files or ():
            if file.match("entmax/test_*.py"):
                shutil.copy(str(package.locate_file(file)), folder)
        options = ["--quiet", f"--config-file={os.devnull}", f"--rootdir={folder}", "-p", "no:cacheprovider"]
        status = int(pytest.main([folder, *options], plugins=[suite]))
    print(f"The tests of entmax {package.version}: {suite.summary()}", *suite.misses(), sep="\n")  # noqa: T201 (a command)
    return status or len(suite.misses())


if __name__ == "__main__":
    sys.exit(main())
