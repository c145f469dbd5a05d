r"""A VAE of dynamically binarised MNIST with 200 bits: how good is the model after as many steps, calls or seconds?

The model is :math:`p(x) = 2^{-200} \sum_z p(x \mid z)` with networks 784-200-200-200 and 200-200-200-784, LeakyReLU of slope
0.3, Adam, and batches of 100, as in the literature on gradients of binary latent variables. Methods differ in what they
maximise, so that all are measured alike: by the importance-weighted bounds of a dense posterior, independent bits whose
logits the encoder returns.

Meant for a GPU, where steps are captured; several commands with different ``--rows`` can share it. Since they also share its
time, milliseconds are those of "2,000 steps", to be trained with nothing else running.

References:
    - DisARM: an antithetic gradient estimator for binary latent variables (Dong, Mnih & Tucker, 2020),
      https://arxiv.org/abs/2006.10680
    - Gradient estimation with discrete Stein operators (Shi, Zhou, Hwang, Titsias & Mackey, 2022),
      https://arxiv.org/abs/2202.09497
"""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from sparsum_experiments.data import load_images
from sparsum_experiments.files import read_tensors, write_tensors
from sparsum_experiments.models.importance import log_mean, proposal_logits
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from sparsum.estimators import AbstractEstimator, Bound

N_BITS, WIDTH, SLOPE, BATCH = 200, 200, 0.3, 100
SHORT, LONG, FULL = "2,000 steps", "50,000 steps", "1,000,000 steps"
N_STEPS = {SHORT: 2_000, LONG: 50_000, FULL: 1_000_000}
#: The bound on validation images is measured at steps that are spaced like these.
N_CHECKPOINTS, FIRST = 9, 0.01
#: After so many steps the state of a training is kept, from which the same command continues.
KEPT_EVERY = 50_000
#: Decoder calls, in millions, at which methods are compared.
EQUAL_CALLS = 5.0
#: Scores that are not logits are multiplied by one of these, chosen on the first validation images.
SHARPNESSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: How many codes are decoded at a time in evaluation.
AT_ONCE = 4000


class Model(torch.nn.Module):
    """An encoder of scores and a decoder of pixels; weights are Glorot's and biases 0, as in the published code."""

    def __init__(self, n_pixels: int, n_bits: int = N_BITS, width: int = WIDTH) -> None:
        super().__init__()
        self.structure = sp.Bits(n_bits)
        self.encoder = perceptron(n_pixels, width, width, n_bits)
        self.decoder = perceptron(n_bits, width, width, n_pixels)
        self.log_count = n_bits * math.log(2)

    def log_joint(self, z: Tensor, x: Tensor) -> Tensor:
        """The log-density log p(x, z), of relaxed codes, too: (*, n_bits), (*, n_pixels) -> (*,)."""
        logits = self.decoder(z)
        log_likelihood: Tensor = torch.linalg.vecdot(logits, x) - functional.softplus(logits).sum(-1)
        return log_likelihood - self.log_count


def perceptron(*sizes: int) -> torch.nn.Sequential:
    """Linear layers with LeakyReLU between them."""
    layers = list[torch.nn.Module]()
    for i in range(len(sizes) - 1):
        linear = torch.nn.Linear(sizes[i], sizes[i + 1])
        torch.nn.init.xavier_uniform_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        layers += [linear, torch.nn.LeakyReLU(SLOPE)]
    return torch.nn.Sequential(*layers[:-1])


#: What a step minimises, and its decoder calls, given a model, images and the source of randomness.
Objective = Callable[[Model, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def elbo(estimator: AbstractEstimator) -> Objective:
    """The negative ELBO with the entropy of the posterior in closed form."""

    def objective(model: Model, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        found = estimator(model.encoder(x), model.structure, lambda z, row: -model.log_joint(z, x[row]), generator=generator)
        return (found.surrogate - found.distribution.entropy()).mean(), found.calls.sum()

    return objective


def sampled_elbo(estimator: AbstractEstimator) -> Objective:
    """The negative ELBO whose entropy is estimated from the same samples, log q(z | x), as in the published code."""

    def objective(model: Model, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        scores = model.encoder(x)
        logits, normaliser = scores.detach(), functional.softplus(scores.detach()).sum(-1)

        def loss(z: Tensor, row: Tensor) -> Tensor:
            log_q: Tensor = torch.linalg.vecdot(z, logits[row]) - normaliser[row]
            return log_q - model.log_joint(z, x[row])

        found = estimator(scores, model.structure, loss, generator=generator)
        return found.surrogate.mean(), found.calls.sum()

    return objective


def bound(make: Callable[..., Bound], k: int) -> Objective:
    """The negative of a bound with k calls per image."""

    def objective(model: Model, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        found = make(model.encoder(x), model.structure, lambda z, row: model.log_joint(z, x[row]), k, generator=generator)
        return -found.surrogate.mean(), found.calls.sum()

    return objective


@dataclass(frozen=True)
class Method:
    """A row."""

    about: str
    objective: Objective
    has_logits: bool = True  # whether the scores are logits of a dense posterior


METHODS: dict[str, Method] = {
    "distinct_bound (30)": Method("ours", bound(sp.estimators.distinct_bound, 30)),
    "DisARM (2)": Method("antithetic pairs", sampled_elbo(sp.estimators.Disarm())),
    "LeaveOneOut (30)": Method("score function", sampled_elbo(sp.estimators.LeaveOneOut(30))),
    "Gumbel-softmax (1)": Method("relaxation, temperature 1", elbo(sp.estimators.GumbelSoftmax(1.0))),
    "LeaveOneOut (2)": Method("score function", sampled_elbo(sp.estimators.LeaveOneOut(2))),
    "distinct_bound (4)": Method("ours", bound(sp.estimators.distinct_bound, 4)),
    "wake_wake (30)": Method("weighted samples", bound(sp.estimators.wake_wake, 30)),
    "vimco (30)": Method("the multi-sample bound", bound(sp.estimators.vimco, 30)),
    "SparseMAP": Method("the exact sum", elbo(sp.estimators.SparseMAP()), has_logits=False),
    "topk_bound (30)": Method("the k best", bound(sp.estimators.topk_bound, 30), has_logits=False),
}


@torch.no_grad()
def log_weights(
    model: Model,
    x: Tensor,  # shape: (n_rows, n_pixels), 0 or 1
    n: int,
    generator: torch.Generator,
    *,
    sharpness: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Tensor:
    """The logarithms of the weights p(x, z) / q(z | x) of n samples per row, float64: (n_rows, n).

    q has the scores as logits, or `proposal_logits` with a sharpness.
    """
    found = list[Tensor]()
    for rows in x.split(max(1, AT_ONCE // n)):
        say(f"{n} samples for each of {len(x)} images, {sum(map(len, found))} done")
        scores = model.encoder(rows)
        logits = (scores if sharpness is None else proposal_logits(scores, sharpness)).unsqueeze(1)
        noise = torch.rand(len(rows), n, logits.shape[-1], dtype=x.dtype, device=x.device, generator=generator)
        z = (noise < logits.sigmoid()).to(x.dtype)
        log_q = torch.linalg.vecdot(z, logits) - functional.softplus(logits).sum(-1)
        found.append((model.log_joint(z, rows.unsqueeze(1)) - log_q).double())
    return torch.cat(found)


def mean_bound(weights: Tensor) -> float:
    """The importance-weighted bound of all samples, averaged over rows."""
    return log_mean(weights).value.mean().item()


class BinaryVAE(AbstractTask):
    """Trains with each method, and measures all models alike."""

    name = "binary-vae"
    about = "a VAE of binarised MNIST with 200 bits, after equal steps, calls or seconds of a GPU"
    settings = (SHORT, LONG, FULL)
    rows: ClassVar = {name: method.about for name, method in METHODS.items()}
    rates, judge = (1e-3,), "validation"
    columns: ClassVar = {
        "elbo": Column("ELBO"),
        "bound_100": Column("100 samples"),
        "bound_1000": Column("1,000 samples"),
        "equal_calls": Column(f"at {EQUAL_CALLS:g} M calls"),
        "calls": Column("M calls", with_spread=False),
        "ms": Column("ms per step", ".2f", with_spread=False),
    }
    left_out: ClassVar = {
        (LONG, "distinct_bound (4)"): "the time of a GPU",
        **{(FULL, row): "7 to 20 minutes of a GPU" for row in METHODS if row not in ("distinct_bound (30)", "DisARM (2)")},
    }
    fewer_seeds: ClassVar = {(setting, row): 1 for setting in (SHORT, FULL) for row in METHODS}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        images = load_images(options.data or "mnist", options.data_dir, device=options.device)
        self.n_pixels, self.scale = images.n_pixels, images.n_levels - 1
        most, few, n_validation = (20, 20, 20) if options.is_quick else (10_000, 1_000, 300)
        self.n_samples = (4, 8) if options.is_quick else (100, 1_000)
        # The same binary images for all models, whatever their seeds.
        generator = torch.Generator(options.device).manual_seed(0)
        self.train_images = images.train.x
        self.validation = self.binarise(images.validation[:n_validation].x, generator)
        self.test = self.binarise(images.test[:most].x, generator)
        self.few = self.test[:few]

    def binarise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw each pixel with its grey level as probability."""
        noise = torch.rand(images.shape, device=images.device, generator=generator)
        return (noise * self.scale < images).float()

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train a model, with its validation bound at checkpoints that are equally spaced in the logarithm of time."""
        method, n_steps = METHODS[trial.row], 3 if self.options.is_quick else N_STEPS[trial.setting]
        training = Training(self, method, trial)
        about = {**asdict(trial), "data": self.options.data, "device": self.device.type, "of": n_steps}
        kept = self.kept(trial) if n_steps > KEPT_EVERY else None
        if kept is not None and kept.exists():
            training.load(kept, about)
        elif kept is not None:
            training.save(kept, about)  # a folder that cannot be written to is found now, not after minutes
        model, curves, measured = training.model, training.curves, checkpoints(n_steps)
        stops = {*measured, *range(KEPT_EVERY, n_steps, KEPT_EVERY)}
        for until in sorted(stop for stop in stops if stop > training.n_steps):
            training.run(until)
            if until in measured:
                value = mean_bound(self.weights(model, method, self.validation, self.n_samples[0]))
                now = (until, training.seconds, training.calls.item() / 1e6, value)
                for curve, number in zip(curves.values(), now, strict=True):
                    curve.append(number)
                say(f"step {until} of {n_steps}, bound {value:.2f} on validation images")
            if kept is not None and until % KEPT_EVERY == 0:
                training.save(kept, about)
        metrics: Metrics = {"validation": curves["bound"][-1], "calls": curves["calls"][-1]}
        if trial.setting == SHORT:  # of which the time of a step is wanted; those before the first checkpoint are captured
            return metrics | {"ms": 1000 * (training.seconds - curves["seconds"][0]) / (n_steps - curves["steps"][0])}
        weights = self.weights(model, method, self.test, self.n_samples[0], say)
        metrics |= {
            "elbo": weights.mean().item(),
            "bound_100": mean_bound(weights),
            "bound_1000": mean_bound(self.weights(model, method, self.few, self.n_samples[1], say)),
        }
        if (at_equal := interpolated(curves["calls"], curves["bound"], EQUAL_CALLS)) is not None:
            metrics["equal_calls"] = at_equal
        return metrics | {f"curve_{name}": curve for name, curve in curves.items()}

    def weights(
        self, model: Model, method: Method, x: Tensor, n: int, say: Callable[[str], None] = lambda _: None
    ) -> Tensor:
        """`log_weights` with the same noise for all models; scores that are not logits are made sharper or smoother."""

        def weigh(x: Tensor, n: int, sharpness: float | None = None) -> Tensor:
            generator = torch.Generator(self.device).manual_seed(1)
            return log_weights(model, x, n, generator, sharpness=sharpness, say=say)

        if method.has_logits:
            return weigh(x, n)
        return weigh(x, n, max(SHARPNESSES, key=lambda a: mean_bound(weigh(self.validation[:100], 20, a))))


class Training:
    """A model and what it is trained with; its steps are captured on a GPU."""

    def __init__(self, task: BinaryVAE, method: Method, trial: Trial) -> None:
        device = task.device
        torch.manual_seed(trial.seed)
        self.model = Model(task.n_pixels).to(device)
        self.generator = torch.Generator(device).manual_seed(trial.seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=trial.rate, fused=True)
        self.n_steps, self.seconds = 0, 0.0
        self.calls = torch.zeros((), dtype=torch.int64, device=device)
        self.curves: dict[str, list[float]] = {name: [] for name in ("steps", "seconds", "calls", "bound")}

        @sp.capture
        def step(chosen: Tensor) -> Tensor:
            x = task.binarise(task.train_images[chosen], self.generator)
            objective, calls = method.objective(self.model, x, self.generator)
            self.optimizer.zero_grad()
            objective.backward()
            self.optimizer.step()
            return calls

        self._step, self._n_images = step, len(task.train_images)

    def run(self, until: int) -> None:
        """Train until so many steps are made."""
        device, begin = self.calls.device, clock(self.calls.device)
        for _ in range(self.n_steps, until):
            self.calls += self._step(torch.randint(self._n_images, (BATCH,), device=device, generator=self.generator))
        self.n_steps, self.seconds = until, self.seconds + clock(device) - begin

    def save(self, path: pathlib.Path, about: Mapping[str, Any]) -> None:
        """Write everything that `load` needs, and what it is the state of."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
        numbers = {name: getattr(self, name) for name in ("n_steps", "seconds", "calls", "curves")}
        write_tensors(path, parts | numbers | {"generator": self.generator.get_state(), "about": dict(about)})

    def load(self, path: pathlib.Path, about: Mapping[str, Any]) -> None:
        """Continue where `save` was called, before any step; raises if it was of something else."""
        found = read_tensors(path)
        if (seen := found.get("about")) != about:
            raise ValueError(f"{path} must be the state of {dict(about)}, got {seen}; remove it to begin anew")
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.generator.set_state(found["generator"])
        self.calls.copy_(found["calls"])
        self.n_steps, self.seconds, self.curves = found["n_steps"], found["seconds"], found["curves"]


def checkpoints(n_steps: int) -> list[int]:
    """Numbers of steps from a hundredth of all to all, equally spaced in their logarithm."""
    places = range(N_CHECKPOINTS)
    return sorted({math.ceil(n_steps * FIRST ** (1 - place / (N_CHECKPOINTS - 1))) for place in places})


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """The value at x, linear in log x between the points; None outside of them."""
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(xs, ys, strict=True)):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * math.log(x / x0) / math.log(x1 / x0)
    return None
