"""Explaining a classifier by 50 of 784 pixels: sums over few subsets against samples and relaxations.

A classifier of MNIST is trained first and then fixed. An explainer gives a score to each pixel of an image, a subset of
exactly 50 pixels is chosen, and a second network, which sees these pixels and black elsewhere, predicts the output of the
classifier: learning to explain (L2X). Both networks are trained together, by the cross-entropy to the classifier's
probabilities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from sparsum_experiments.data import load_images
from torch import Tensor, nn
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from sparsum import estimators as es

#: The second network is called for this many subsets of each image: atoms or samples.
CALLS = 4
TOPK, RANDOM, BRIGHTEST = "top-k", "random", "brightest"
#: The spread of ScoreNorm.
SPREADS = {"sparse": 0.5, "sparse, spread 32": 32.0, TOPK: 0.5}
#: The temperature of relaxed subsets.
TEMPERATURES = {"gumbel top-k, 0.5": 0.5, "gumbel top-k, 0.1": 0.1}
ESTIMATORS: Mapping[str, Callable[[], es.AbstractEstimator]] = {
    "sparse": lambda: es.SparseMAP(max_atoms=CALLS),
    "sparse, spread 32": lambda: es.SparseMAP(max_atoms=CALLS),
    TOPK: lambda: es.TopK(CALLS),
    "simple": lambda: es.Simple(CALLS),
    "imle, step 1": lambda: es.Imle(1.0, samples=CALLS),
    "imle, step 10": lambda: es.Imle(10.0, samples=CALLS),
    "leave-one-out": lambda: es.LeaveOneOut(CALLS),
}


def relaxed_subset(scores: Tensor, k: int, temperature: float, generator: torch.Generator | None = None) -> Tensor:
    """Weights of pixels that sum to k: k softmaxes of perturbed scores, each of which excludes what was taken before.

    Xie & Ermon (2019), Reparameterizable subset sampling via continuous relaxations, algorithm 2 with Gumbel noise.
    """
    uniform = torch.rand(scores.shape, generator=generator, device=scores.device).clamp_min(1e-30)
    keys, total = scores - (-uniform.log()).log(), torch.zeros_like(scores)
    for _ in range(k):
        taken = (keys / temperature).softmax(-1)
        total = total + taken
        keys = keys + (1 - taken).clamp_min(1e-20).log()
    return total


def mlp(n_in: int, hidden: int, n_out: int) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, n_out))


class Explainer(nn.Module):
    """The network that scores pixels, and the one that sees the chosen ones."""

    def __init__(self, n_pixels: int, n_chosen: int, hidden: int, row: str) -> None:
        super().__init__()
        self.row, self.structure = row, sp.Subset(n_pixels, n_chosen)
        self.scorer, self.reader = mlp(n_pixels, hidden, n_pixels), mlp(n_pixels, hidden, 10)
        if row in SPREADS:
            self.scorer.append(sp.nn.ScoreNorm(n_pixels, spread=SPREADS[row], learn_temperature=True))
        self.estimator = ESTIMATORS[row]() if row in ESTIMATORS else None

    def losses(self, x: Tensor, target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The loss of each image to differentiate, and the calls of the reader."""

        def loss(z: Tensor, row: Tensor) -> Tensor:
            entropies: Tensor = -(target[row] * self.reader(x[row] * z).log_softmax(-1)).sum(-1)
            return entropies

        if self.estimator is not None:
            estimate = self.estimator(self.scorer(x), self.structure, loss, generator=generator)
            return estimate.surrogate, estimate.calls
        n_calls = 1 if self.row == BRIGHTEST else CALLS
        row = torch.arange(len(x), device=x.device).repeat(n_calls)
        if self.row in TEMPERATURES:
            z = relaxed_subset(self.scorer(x)[row], self.structure.k, TEMPERATURES[self.row], generator)
        else:
            z = self.chosen(x[row], generator)
        return loss(z, row).view(n_calls, -1).mean(0), torch.full((len(x),), n_calls, device=x.device)

    def chosen(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The best subset of each image, or that of a reference: (n, n_pixels)."""
        if self.row == RANDOM:
            return self.structure.argmax(torch.rand(x.shape, generator=generator, device=x.device))
        return self.structure.argmax(x if self.row == BRIGHTEST else self.scorer(x))


@final
class PixelSubsets(AbstractTask):
    """Explanations of a classifier."""

    name, about = "pixel-subsets", "explaining a classifier of MNIST by 50 pixels"
    settings = ("50 of 784 pixels",)
    rows: ClassVar = {
        "sparse": f"SparseMAP behind ScoreNorm, at most {CALLS} subsets",
        "sparse, spread 32": "the same, with scores that are spread 64 times as far, so that few subsets have mass",
        TOPK: f"the {CALLS} best subsets, behind ScoreNorm",
        "simple": f"{CALLS} samples, the gradient of the exact marginals",
        "imle, step 1": f"{CALLS} perturbed optima",
        "imle, step 10": "the same, with a larger step",
        "leave-one-out": f"score functions of {CALLS} samples",
        "gumbel top-k, 0.5": f"{CALLS} relaxed subsets, temperature 0.5",
        "gumbel top-k, 0.1": "the same, temperature 0.1",
        RANDOM: "no explainer: other random pixels in each step",
        BRIGHTEST: "no explainer: the brightest pixels",
    }
    rates, judge = (1e-3, 3e-3), "validation"
    columns: ClassVar = {
        "agreement": Column("agreement", ".1%"),
        "masked": Column("classifier on the pixels", ".1%"),
        "loss": Column("loss", ".3f"),
        "calls": Column("calls", ".1f", with_spread=False),
        "ms": Column("ms per step", ".1f", with_spread=False),
    }
    fewer_seeds: ClassVar = {(settings[0], "simple"): 2}
    n_steps, n_tuning_steps, n_classifier_steps, batch_size, hidden, n_chosen = 500, 125, 2000, 50, 256, 50

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.is_quick:
            self.n_steps, self.n_tuning_steps, self.n_classifier_steps, self.hidden, self.n_chosen = 3, 3, 3, 8, 5

    @functools.cached_property
    def images(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Grey levels from 0 to 1 and the probabilities of the classifier, by split."""
        images = load_images(self.options.data or "mnist", self.options.data_dir, device=self.device)
        split = {name: getattr(images, name) for name in ("train", "validation", "test")}
        x = {name: each.x / (images.n_levels - 1) for name, each in split.items()}
        self.classifier = self.trained_classifier(x["train"], split["train"].y)
        with torch.no_grad():
            return {name: (each, self.classifier(each).softmax(-1)) for name, each in x.items()}

    def trained_classifier(self, x: Tensor, y: Tensor) -> nn.Module:
        """The classifier to be explained, always the same one."""
        torch.manual_seed(0)
        generator = torch.Generator(self.device).manual_seed(0)
        model = mlp(x.shape[1], self.hidden, 10).to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

        @sp.capture
        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        for _ in range(self.n_classifier_steps):
            chosen = torch.randint(len(x), (self.batch_size,), generator=generator, device=self.device)
            step(x[chosen], y[chosen])
        return model.requires_grad_(False)

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train an explainer and the network that reads its pixels."""
        x, target = self.images["train"]
        torch.manual_seed(trial.seed)
        generator = torch.Generator(self.device).manual_seed(trial.seed)
        model = Explainer(x.shape[1], self.n_chosen, self.hidden, trial.row).to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate, fused=True)

        @sp.capture
        def step(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            losses, calls = model.losses(x, target, generator)
            losses.mean().backward()
            optimizer.step()
            return losses.mean().detach(), calls.float().mean()

        n_steps, seen = self.n_tuning_steps if trial.is_tuning else self.n_steps, []
        begin = clock(self.device)
        for i in range(n_steps):
            chosen = torch.randint(len(x), (self.batch_size,), generator=generator, device=self.device)
            seen.append(torch.stack(step(x[chosen], target[chosen])))
            if i % 100 == 99:
                say(f"step {i + 1} of {n_steps}, loss {seen[-1][0].item():.3f}")
        ms = 1000 * (clock(self.device) - begin) / n_steps
        loss, calls = torch.stack(seen).T
        metrics: Metrics = {"curve": [part.mean().item() for part in loss.split(50)], "calls": calls.mean().item(), "ms": ms}
        model.eval()
        metrics["validation"] = -self.measured(model, "validation", generator)["loss"]
        return metrics if trial.is_tuning else {**metrics, **self.measured(model, "test", generator)}

    @torch.no_grad()
    def measured(self, model: Explainer, split: str, generator: torch.Generator) -> dict[str, float]:
        """With the best subset of each image: agreement of both networks with the classifier, and the loss."""
        x, target = self.images[split]
        seen = x * model.chosen(x, generator)
        predicted, wanted = model.reader(seen).log_softmax(-1), target.argmax(-1)
        return {
            "agreement": (predicted.argmax(-1) == wanted).float().mean().item(),
            "masked": (self.classifier(seen).argmax(-1) == wanted).float().mean().item(),
            "loss": -(target * predicted).sum(-1).mean().item(),
        }
