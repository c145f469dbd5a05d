"""Three ways to train a categorical latent variable, side by side, on scikit-learn's digits.

The model explains an 8 x 8 image by one of 64 prototypes: an encoder scores the prototypes, a decoder turns a prototype into
pixel probabilities. The loss needs a sum over all 64 under the posterior. It is computed

- exactly over the few prototypes that sparsemax keeps (``sparse``),
- exactly over all of them under softmax (``dense``),
- by one sample from softmax and the score function, REINFORCE, with the mean loss as baseline (``sampled``).

Run it with ``python -m examples.digits``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor
from torch.distributions import Categorical

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
    """A mixture of prototypes with an encoder."""

    def __init__(self, n_prototypes: int) -> None:
        super().__init__()
        self.n_prototypes = n_prototypes
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(N_PIXELS, 128), torch.nn.ReLU(), torch.nn.Linear(128, n_prototypes)
        )
        self.prototypes = torch.nn.Parameter(torch.randn(n_prototypes, 128))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, N_PIXELS))

    def distortion(self, x: Tensor, z: Tensor) -> Tensor:
        """Negative log-likelihood of images ``x`` (n, 64) under prototypes ``z`` (n,), in nats per pixel."""
        logits = self.decoder(sp.embed(z, self.prototypes))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").mean(-1)


@dataclass
class Step:
    """What one batch gives: the loss to differentiate, and two numbers per image to report."""

    objective: Tensor  # shape: ()
    loss: Tensor  # shape: (batch,)
    calls: Tensor  # shape: (batch,)


def sparse_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """The exact sum over the support of sparsemax."""
    q = sp.sparsemap(model.encoder(x), sp.OneOf(model.n_prototypes))
    loss = q.expect(lambda z, row: model.distortion(x[row], z)) + (math.log(model.n_prototypes) - q.entropy()) / N_PIXELS
    return Step(loss.mean(), loss, q.n_atoms_per_row)


def dense_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """The exact sum over all prototypes."""
    q = sp.SparseDistribution.from_dense(torch.softmax(model.encoder(x), -1))
    loss = q.expect(lambda z, row: model.distortion(x[row], z)) + (math.log(model.n_prototypes) - q.entropy()) / N_PIXELS
    return Step(loss.mean(), loss, q.n_atoms_per_row)


def sampled_step(model: Model, x: Tensor, generator: torch.Generator) -> Step:
    """One sample and the score function."""
    q = Categorical(logits=model.encoder(x))
    z = torch.multinomial(q.probs, 1, generator=generator).squeeze(-1)
    distortion = model.distortion(x, z)
    rate = (math.log(model.n_prototypes) - q.entropy()) / N_PIXELS
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


@torch.no_grad()
def evaluate(model: Model, method: str, seed: int) -> tuple[float, float, float]:
    """Loss, accuracy in percent, and decoder calls on the test images.

    Nobody told the model about labels: each prototype is named after the digit that it explains most often in training.
    """
    images, labels = load()
    step = METHODS[method](model, images[N_TRAIN:], torch.Generator().manual_seed(seed))
    votes = torch.zeros(model.n_prototypes, 10)
    votes.index_put_((model.encoder(images[:N_TRAIN]).argmax(-1), labels[:N_TRAIN]), torch.ones(N_TRAIN), accumulate=True)
    guesses = votes.argmax(-1)[model.encoder(images[N_TRAIN:]).argmax(-1)]
    accuracy = (guesses == labels[N_TRAIN:]).float().mean()
    return step.loss.mean().item(), 100 * accuracy.item(), step.calls.float().mean().item()


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
    for column in ("method", "loss (nats/pixel)", "accuracy (%)", "decoder calls per image", "training (s)"):
        table.add_column(column, justify="left" if column == "method" else "right")
    with Progress(console=console) as progress:
        for method in METHODS:
            task = progress.add_task(f"{method:8}", total=args.epochs)

            def report(epoch: int, step: Step, method: str = method, task: object = task) -> None:
                text = f"{method:8} loss {step.loss.mean():.3f}, calls {step.calls.float().mean():5.2f}"
                progress.update(task, completed=epoch + 1, description=text)  # type: ignore[arg-type]

            start = time.perf_counter()
            model = train(method, args, report)
            seconds = time.perf_counter() - start
            loss, accuracy, calls = evaluate(model, method, args.seed)
            table.add_row(method, f"{loss:.4f}", f"{accuracy:.1f}", f"{calls:.2f}", f"{seconds:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
