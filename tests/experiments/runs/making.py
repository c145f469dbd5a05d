"""Runs as training and evaluation leave them, without either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparsum_experiments.registry import make_args
from sparsum_experiments.runs import Config, RunArgs, RunFolder


def make_run(
    path: Path,
    *,
    experiment: str = "bitvector-vae",
    method: str = "topk",
    seed: int = 0,
    n_epochs: int = 2,
    test: dict[str, float] | None = None,
    **options: Any,
) -> RunFolder:
    """A run of two epochs, of which ``n_epochs`` are done, evaluated if there are ``test`` metrics."""
    args = make_args(experiment, method, {"epochs": 2, "seed": seed, "data_dir": "/somewhere/else", **options})
    folder = RunFolder(path)
    config: dict[str, Any] = {"versions": {"torch": "2"}, "machine": "a CPU", "git": "abc", "command": ["sparsum", "train"]}
    folder.create(Config(experiment=experiment, args=RunArgs(**args.model_dump()), **config))
    for epoch in range(n_epochs):
        line = {"epoch": epoch, "train": {"loss": 1 / 3}, "validation": {"elbo": -10 / 7}, "calls": {"mean": 2.5}}
        folder.add_metrics(line | {"seconds": 1.25, "validation_seconds": 0.5, "peak_memory_mb": 100.0})
    if test is not None:
        content = test | {"epochs": float(n_epochs), "n_samples": 4}
        folder.evaluation_file().write_text(json.dumps(content), encoding="utf-8")
    return folder
