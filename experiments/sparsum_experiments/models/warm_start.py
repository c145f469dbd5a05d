"""The warm start of the semisupervised VAE: a training on the labelled images, done once for all runs that share it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sparsum_experiments.files import read_tensors, write_tensors
from sparsum_experiments.models.layers import adam
from sparsum_experiments.seeds import with_seed

if TYPE_CHECKING:
    from sparsum_experiments.ssvae import SemisupervisedVAE

_LR = 1e-3
_NETWORKS = ("classifier", "inference", "generative")
# Counts up when what is done here changes, so that no old file is taken for a new one.
_VERSION = 1


def cache_folder() -> pathlib.Path:
    """Where warm starts are kept: $SPARSUM_CACHE, or sparsum in the user's cache folder."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sparsum"
    return pathlib.Path(os.environ.get("SPARSUM_CACHE", default)) / "warm-starts"


def warm_start(experiment: SemisupervisedVAE, say: Callable[[str], None]) -> None:
    """Give the networks of an experiment the weights of its warm start, made now or earlier."""
    n_epochs = experiment.args.warm_epochs
    if n_epochs is None:
        n_epochs = 10 if experiment.args.data == "digits" else 100
    if n_epochs == 0:
        return
    settings = _settings(experiment, n_epochs)
    key = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=10).hexdigest()
    file = cache_folder() / f"ssvae-{key}.pt"
    with _locked(file):
        if not file.exists():
            write_tensors(file, {"settings": settings, "weights": _train(experiment, n_epochs, say)})
    weights = read_tensors(file, experiment.device)["weights"]
    for name in _NETWORKS:
        getattr(experiment.model, name).load_state_dict(weights[name])
    say(f"warm start of {n_epochs} epochs on labelled images: {file}")


def _settings(experiment: SemisupervisedVAE, n_epochs: int) -> dict[str, Any]:
    """All that the weights depend on."""
    args = experiment.args
    digest = hashlib.blake2b(experiment.images.train.x[experiment.labelled].cpu().numpy().tobytes(), digest_size=10)
    return {
        "version": _VERSION,
        "data": [args.data, len(experiment.labelled), digest.hexdigest()],
        "loss": experiment.model.classification_loss.__name__,
        "epochs": n_epochs,
        "seed": args.warm_seed,
        "batch_size": args.batch_size,
        "weight_decay": args.weight_decay,
        "latent": args.latent,
        "device": experiment.device.type,
    }


def _train(experiment: SemisupervisedVAE, n_epochs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The weights after so many epochs on the labelled images, which depend on the warm start's own seed alone."""
    kind = type(experiment.model)
    args = dataclasses.replace(experiment.args, seed=experiment.args.warm_seed)
    n_pixels, weight = experiment.images.train.x.shape[1], experiment.model.unlabelled_weight
    model = with_seed(lambda: kind(args, n_pixels, weight), args.warm_seed, "warm", "weights").to(experiment.device)
    optimiser = adam(model, _LR, args.weight_decay)
    told = time.monotonic()
    for epoch in range(n_epochs):
        generator, batches = experiment.warm_batches(epoch)
        for batch in batches:
            step = model(batch, generator)
            optimiser.zero_grad(set_to_none=True)
            step.objective.backward()
            optimiser.step()
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"warm start: epoch {epoch + 1} of {n_epochs}, accuracy on labelled images {step.terms['accuracy']:.2f}")
    if not torch.isfinite(step.objective):
        raise RuntimeError(f"the warm start diverged: its loss is {step.objective.item()}")
    return {name: getattr(model, name).state_dict() for name in _NETWORKS}


@contextlib.contextmanager
def _locked(file: pathlib.Path) -> Iterator[None]:
    """Let one process at a time make a file; the lock of one that dies is free again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
