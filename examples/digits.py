"""Three ways to train a categorical latent variable, side by side, on scikit-learn's digits.

The model explains an 8 x 8 image by one of 64 prototypes and a style of two numbers. An encoder scores the prototypes and
gives the style; a decoder turns a prototype *and* the style of the image into pixel probabilities, so that a sum over the
prototypes needs a decoder call for each of them and each image. It is computed

- exactly over the few prototypes that sparsemax keeps (``sparse``),
- exactly over all of them under softmax (``dense``),
- by one sample from softmax and the score function, REINFORCE, with the batch's mean loss as baseline (``sampled``).

Run it with ``python -m examples.digits``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

import sparsum as sp

N_PIXELS, N_LEVELS = 64, 16
N_TRAIN = 1_497


@dataclass(frozen=True)
class Args:
    """Settings of a run."""

    epochs: int = 60
    prototypes: int = 64
    batch_size: int = 64
    learning_rate: float = 2e-3
    seed: int = 0


class Model(torch.nn.Module):
    """Prototypes with a style, and an encoder of both."""

    def __init__(self, n_prototypes: int) -> None:
        super().__init__()
        self.prior = sp.UniformOver(sp.OneOf(n_prototypes))
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(N_PIXELS, 128), torch.nn.ReLU(), torch.nn.Linear(128, n_prototypes)
        )
        self.style = torch.nn.Sequential(torch.nn.Linear(N_PIXELS, 2), torch.nn.Tanh())
        self.prototypes = torch.nn.Parameter(torch.randn(n_prototypes, 128))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(130, 256), torch.nn.ReLU(), torch.nn.Linear(256, N_PIXELS))

    def distortion(self, x: Tensor, style: Tensor, z: Tensor) -> Tensor:
        """Negative log-likelihood of images ``x`` (n, 64), per pixel, given their style (n, 2) and prototypes ``z`` (n,)."""
        logits = self.decoder(torch.cat([sp.embed(z, self.prototypes), style], -1))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").mean(-1)


@dataclass
class Step:
    """What one batch gives: the loss to differentiate, and two numbers per image to report."""

    objective: Tensor  # shape: ()
    loss: Tensor  # shape: (batch,)
    calls: Tensor  # shape: (batch,)


def exact_step(model: Model, x: Tensor, q: sp.SparseDistribution) -> Step:
    """The exact sum over the atoms of the posterior."""
    style = model.style(x)
    rate = kl_divergence(q, model.prior) / N_PIXELS
    loss = q.expect(lambda z, row: model.distortion(x[row], style[row], z)) + rate
    return Step(loss.mean(), loss, q.n_atoms_per_row)


def sparse_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """The exact sum over the support of sparsemax."""
    scores = model.encoder(x)
    return exact_step(model, x, sp.sparsemap(scores, sp.OneOf(scores.shape[-1])))


def dense_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """The exact sum over all prototypes."""
    return exact_step(model, x, sp.SparseDistribution.from_dense(torch.softmax(model.encoder(x), -1)))


def sampled_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """One sample and the score function."""
    q = Categorical(logits=model.encoder(x))
    z = torch.multinomial(q.probs, 1, generator=generator).squeeze(-1)
    distortion = model.distortion(x, model.style(x), z)
    rate = (model.prior.entropy() - q.entropy()) / N_PIXELS
    advantage = (distortion - distortion.mean()).detach()
    objective = distortion + rate + advantage * q.log_prob(z)
    return Step(objective.mean(), distortion + rate, torch.ones(len(x)))


METHODS: dict[str, Callable[[Model, Tensor, torch.Generator], Step]] = {
    "sparse": sparse_step,
    "dense": dense_step,
    "sampled": sampled_step,
}


def load() -> tuple[Tensor, Tensor]:
    """Images as values from 0 to 1, (1797, 64), in a fixed random order, and their labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data, dtype=torch.float32)[order] / N_LEVELS, torch.tensor(digits.target)[order]


def train(method: str, args: Args, report: Callable[[int, Step], None]) -> Model:
    """Train a model by one of the methods; ``report`` hears of every epoch's last step."""
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    images = load()[0][:N_TRAIN]
    model = Model(args.prototypes)
    optimiser = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    for epoch in range(args.epochs):
        for batch in torch.randperm(N_TRAIN, generator=generator).split(args.batch_size):
            step = METHODS[method](model, images[batch], generator)
            optimiser.zero_grad()
            step.objective.backward()
            optimiser.step()
        report(epoch, step)
    return model


@dataclass(frozen=True)
class Result:
    """What a trained model does on the test images."""

    loss: float
    accuracy: float  # percent
    calls: float  # decoder calls per image
    n_used: int  # prototypes that are the best for some training image


@torch.no_grad()
def evaluate(model: Model, method: str, seed: int) -> Result:
    """Measure a model.

    Nobody told it about labels: each prototype is named after the digit that it explains most often in training.
    """
    images, labels = load()
    step = METHODS[method](model, images[N_TRAIN:], torch.Generator().manual_seed(seed))
    best = model.encoder(images).argmax(-1)
    votes = torch.zeros(len(model.prototypes), 10)
    votes.index_put_((best[:N_TRAIN], labels[:N_TRAIN]), torch.ones(N_TRAIN), accumulate=True)
    accuracy = (votes.argmax(-1)[best] == labels)[N_TRAIN:].float().mean()
    n_used = int((votes.sum(-1) > 0).sum())
    return Result(step.loss.mean().item(), 100 * accuracy.item(), step.calls.float().mean().item(), n_used)


def main() -> None:
    """Train all methods and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--epochs", type=int, default=Args.epochs, help="passes over the 1,497 training images (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=Args.seed, help="of weights, batches and samples (%(default)s)")
    options = parser.parse_args()
    args = Args(epochs=options.epochs, seed=options.seed)

    console = Console()
    table = Table(title=f"{args.prototypes} prototypes, {args.epochs} epochs, on the 300 test images")
    for column in (
        "method",
        "nats/pixel",
        "accuracy (%)",
        "calls/image",
        "prototypes used",
        "training (s)",
    ):
        table.add_column(column, justify="left" if column == "method" else "right")
    with Progress(console=console) as progress:
        for method in METHODS:
            task = progress.add_task(f"{method:8}", total=args.epochs)

            def report(epoch: int, step: Step, method: str = method, task: TaskID = task) -> None:
                text = f"{method:8} loss {step.loss.mean():.3f}, calls {step.calls.float().mean():5.2f}"
                progress.update(task, completed=epoch + 1, description=text)

            start = time.perf_counter()
            model = train(method, args, report)
            seconds = time.perf_counter() - start
            result = evaluate(model, method, args.seed)
            numbers = f"{result.loss:.4f}", f"{result.accuracy:.1f}", f"{result.calls:.2f}", f"{result.n_used}"
            table.add_row(method, *numbers, f"{seconds:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
