"""The bit-vector VAE matches the paper, and its fused log-likelihood matches log-softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from sparsum_experiments import bitvector_vae
from sparsum_experiments.bitvector_vae import RANK, Args, BitvectorVAE, Model
from sparsum_experiments.data import Images, Split
from sparsum_experiments.models import likelihood
from sparsum_experiments.models.estimators import ModeThrough
from sparsum_experiments.models.likelihood import pixel_log_likelihood
from sparsum_experiments.registry import make_args
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sparsum as sp
from tests.simplex.test_devices import every_device

CPU = torch.device("cpu")


def fused(tensors: Sequence[Tensor], x: Tensor) -> Tensor:
    features, weight, bias = tensors
    return pixel_log_likelihood(features, weight, bias, x)


def twin(tensors: Sequence[Tensor], x: Tensor) -> Tensor:
    """The definition."""
    features, weight, bias = tensors
    log_probs = (features @ weight.t() + bias).log_softmax(-1)
    return log_probs.gather(-1, x.long().unsqueeze(-1)).sum((1, 2))


def inputs(
    n: int = 7, n_pixels: int = 6, n_levels: int = 17, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(n, n_pixels, RANK), (n_levels, RANK), (n_levels,)]
    tensors = [scale * torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
    return tensors, torch.randint(0, n_levels, (n, n_pixels), generator=generator, dtype=torch.uint8)


@every_device
@pytest.mark.parametrize("n_bytes", [1, 2000, 2**22], ids=lambda n: f"{n} bytes")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_likelihood_is_its_twin(
    n_bytes: int, dtype: torch.dtype, tolerance: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "CPU_BYTES", n_bytes)
    monkeypatch.setattr(likelihood, "OTHER_BYTES", n_bytes)
    tensors, x = inputs()
    upstream = torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast = [tensor.to(device, dtype).requires_grad_() for tensor in tensors]
    slow = [tensor.clone().requires_grad_() for tensor in tensors]
    values, expected = fused(fast, x.to(device)), twin(slow, x)
    torch.testing.assert_close(values.double().cpu(), expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(values, fast, upstream.to(device, dtype))
    for gradient, truth in zip(gradients, torch.autograd.grad(expected, slow, upstream), strict=True):
        torch.testing.assert_close(gradient.double().cpu(), truth, rtol=tolerance, atol=10 * tolerance)


def test_likelihood_gradcheck() -> None:
    tensors, x = inputs(3, 2, 4)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(lambda *args: fused(args, x), leaves)
    for i in range(3):  # each derivative alone
        parts = [tensor.detach().requires_grad_(i == j) for j, tensor in enumerate(leaves)]
        (gradient,) = torch.autograd.grad(fused(parts, x).sum(), parts[i])
        torch.testing.assert_close(gradient, torch.autograd.grad(twin(leaves, x).sum(), leaves[i])[0])
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    values = fused(leaves, x)
    (first,) = torch.autograd.grad((weights * values).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_likelihood_of_very_improbable_images() -> None:
    tensors, x = inputs(scale=20.0)  # logits around 1,000; probabilities underflow in float32
    values = fused([tensor.float() for tensor in tensors], x)
    assert (values < -1e3).all()
    torch.testing.assert_close(values.double(), twin(tensors, x), rtol=1e-5, atol=1e-2)


def test_likelihood_without_gradient_and_in_half_precision() -> None:
    tensors, x = inputs(dtype=torch.float32)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    with torch.no_grad():
        assert fused(leaves, x).grad_fn is None
    half = [tensor.bfloat16() for tensor in tensors]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = fused([half[0], *leaves[1:]], x)
    torch.testing.assert_close(values, twin([half[0].float(), *tensors[1:]], x))
    values.sum().backward()
    assert leaves[1].grad is not None
    assert leaves[1].grad.dtype == torch.float32
    assert fused([tensors[0][:0], *tensors[1:]], x[:0]).shape == (0,)


class Largest(TorchDispatchMode):
    """Records the size of the largest result of an operation, in bytes."""

    n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.n_bytes = max(self.n_bytes, value.numel() * value.element_size())
        return result


def test_likelihood_does_not_store_all_logits() -> None:
    n, n_pixels, n_levels = 24, 784, 256
    tensors, x = inputs(n, n_pixels, n_levels, dtype=torch.float32)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    with Largest() as largest:
        fused(leaves, x).sum().backward()
    assert n * n_pixels * n_levels * 4 > 4 * likelihood.CPU_BYTES >= 4 * largest.n_bytes


SIZES = [(784, 128), (128,), (128, 32), (32,), (32, 128), (128,), (128, 3920), (3920,), (5, 256), (256,)]


@pytest.mark.parametrize(
    ("method", "bits", "n_parameters"),
    # inference 784-128-D, generative D-128-(784 x 5), and 5-256; the baseline of NVIL is 784-512-512-512-1
    [("topk", 32, 616_048), ("sparsemap-budget", 128, 640_720), ("nvil", 32, 616_048 + 927_745)],
)
def test_networks_have_the_sizes_of_the_paper(method: str, bits: int, n_parameters: int) -> None:
    model = Model(Args(method=method, bits=bits), 784, 256)
    assert sum(parameter.numel() for parameter in model.parameters()) == n_parameters
    shapes = [tuple(p.shape) if p.ndim == 1 else tuple(p.shape[::-1]) for p in model.parameters()]
    assert bits != 32 or shapes[: len(SIZES)] == SIZES
    kinds = [type(layer) for layer in (*model.inference, *model.generative)]
    assert kinds == 2 * [torch.nn.Linear, torch.nn.ReLU, torch.nn.Linear]
    assert sum(buffer.numel() for buffer in model.state_dict().values()) == n_parameters
    budget = {"sparsemap-budget": sp.Budget(128, 64)}
    assert model.structure == budget.get(method, sp.Bits(bits))


@pytest.mark.parametrize("method", ["sparsemap", "topk", "dense", "sfe"])
def test_loss_by_hand(method: str) -> None:
    model = Model(Args(method=method, bits=2, k=2), 3, 4).double()
    model.scores = lambda x: torch.tensor([[0.5, -3.0]], dtype=torch.float64)  # type: ignore[method-assign]
    x = torch.tensor([[0, 3, 1]], dtype=torch.uint8)
    a = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(3.0))
    codes = {
        "sparsemap": {(1.0, 0.0): 0.75, (0.0, 0.0): 0.25},  # the marginals are (t + 1) / 2, clamped to [0, 1]
        "topk": {(1.0, 0.0): 0.75, (0.0, 0.0): 0.25},  # the sparsemax of the scores 0.5 and 0
    }.get(method, {(i, j): abs(1 - i - a[0]) * abs(1 - j - a[1]) for i in (0.0, 1.0) for j in (0.0, 1.0)})
    distortions, weights = {}, model.state_dict()
    for z in codes:
        hidden = (
            weights["generative.0.weight"] @ torch.tensor(z, dtype=torch.float64) + weights["generative.0.bias"]
        ).relu()
        numbers = weights["generative.2.weight"] @ hidden + weights["generative.2.bias"]
        distortions[z] = 0.0
        for pixel, level in enumerate(x[0].tolist()):
            logits = model.levels.weight @ numbers[pixel * RANK : (pixel + 1) * RANK] + model.levels.bias
            distortions[z] -= math.log(logits[level].exp().item() / logits.exp().sum().item())
    entropy = -sum(p * math.log(p) for p in codes.values())
    distortion = sum(p * distortions[z] for z, p in codes.items())
    step = model({"x": x}, torch.Generator().manual_seed(0))
    if method == "sfe":  # one of the four
        distortion = min(distortions.values(), key=lambda value: abs(value - step.terms["distortion"].item()))
    expected = {"distortion": distortion, "entropy": entropy, "rate": 2 * math.log(2) - entropy}
    expected["loss"] = expected["distortion"] + expected["rate"]
    expected["elbo"] = -expected["loss"]
    for name, value in expected.items():
        assert step.terms[name].item() == pytest.approx(value, rel=1e-6), name
    assert step.objective.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert step.calls.tolist() == [{"sfe": 1}.get(method, len(codes))]


def fake_images(n_train: int = 200) -> Images:
    """Noisy copies of five images of 4 x 4 pixels with 17 levels."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randint(2, 15, (5, 16), generator=generator)

    def split(n: int) -> Split:
        y = torch.randint(0, 5, (n,), generator=generator)
        x = prototypes[y] + torch.randint(-2, 3, (n, 16), generator=generator)
        return Split(x.to(torch.uint8), y)

    return Images("fake", (4, 4), 17, split(n_train), split(50), split(50), torch.zeros(n_train, dtype=torch.bool))


def experiment(**changes: Any) -> BitvectorVAE:
    options: dict[str, Any] = {"method": "topk", "bits": 6, "batch_size": 32, "lr": 1e-2} | changes
    return BitvectorVAE(Args(**options), CPU, fake_images())


def train(vae: BitvectorVAE, n_epochs: int) -> None:
    optimiser, generator = vae.optimiser(), torch.Generator().manual_seed(1)
    vae.model.train()
    for _ in range(n_epochs):
        order = vae.start_epoch(generator)
        for i in range(vae.n_steps):
            step = vae.model(vae.batch(order, i, generator), generator)
            optimiser.zero_grad()
            step.objective.backward()
            optimiser.step()
            assert step.calls.shape == (vae.n_calls_per_step,)
            assert all(value.isfinite() and not value.requires_grad for value in step.terms.values())


@torch.no_grad()
def likelihood_of_modes(vae: BitvectorVAE) -> float:
    """The mean of log p(x | z) over validation images, with z the most probable code."""
    x = vae.images.validation.x
    return vae.model.log_likelihood((vae.model.scores(x) > 0).float(), x).mean().item()


def test_the_authors_straight_through_evaluates_the_most_probable_code() -> None:
    """Its gradient is that of the relaxed sample, which for a linear loss does not depend on the code."""
    scores = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights, seen, gradients = torch.tensor([1.0, -2.0, 0.5, 3.0]), [], []
    for estimator in (ModeThrough(0.7), sp.estimators.StraightThrough(0.7)):

        def loss(z: Tensor, row: Tensor) -> Tensor:
            seen.append(z.detach())
            return z @ weights

        surrogate = estimator(scores, sp.Bits(4), loss, generator=torch.Generator().manual_seed(1)).surrogate
        gradients.append(torch.autograd.grad(surrogate.sum(), scores)[0])
    assert torch.equal(seen[0], (scores > 0).float())
    assert not torch.equal(seen[1], seen[0])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("method", BitvectorVAE.methods)
def test_every_method_learns(method: str) -> None:
    vae = experiment(method=method)
    before, before_of_modes = vae.validate(torch.Generator().manual_seed(0)), likelihood_of_modes(vae)
    train(vae, 15)
    after = vae.validate(torch.Generator().manual_seed(0))
    if method == "st-gumbel-mode":  # it evaluates no other codes, so its posterior may have high entropy
        assert likelihood_of_modes(vae) > before_of_modes + 5
    else:
        assert after["elbo"] > before["elbo"] + 5
    assert after["elbo"] == pytest.approx(-after["rate"] - after["distortion"])
    assert ("bound" in after) == (method in bitvector_vae.BOUNDS)
    if method == "topk-bound":
        assert after["bound"] > after["elbo"]
        assert after["calls"] == vae.args.k
    assert ("exact" in after, "unsolved" in after) == (method.startswith("topk"), "sparsemap" in method)


@pytest.mark.parametrize(
    "changes",
    [{"solver": "nested"}, {"solver": "systematic"}, {"solver": "active-set"}, {"method": "sparsemap-budget", "budget": 1}],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_solvers(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    vae = experiment(**({"method": "sparsemap"} | changes))
    assert vae.validate(torch.Generator())["unsolved"] == 0
    train(vae, 1)
    q = vae.model.posterior(vae.images.test.x, torch.Generator())
    assert isinstance(q, sp.SparseDistribution)
    assert q.atoms.sum(-1).max() <= changes.get("budget", 6)
    monkeypatch.setitem(bitvector_vae.SOLVERS, "active-set", sp.solvers.ActiveSet(max_steps=1, strict=False))
    short = experiment(method="sparsemap", solver="active-set")
    assert short.validate(torch.Generator())["unsolved"] > 0.5


@pytest.mark.parametrize("method", ["sparsemap", "sparsemap-budget"])
@pytest.mark.parametrize("order", ["fixed", "random", "sorted"])
def test_the_order_of_bits_changes_the_atoms_and_not_their_mean(order: str, method: str) -> None:
    solver = "systematic" if method == "sparsemap" else ""
    vae, seen = experiment(method=method, solver=solver, bit_order=order), []
    x = vae.images.train.x[:20]
    vae.model.generative.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    vae.model.train()
    q = vae.model.estimate(x, torch.Generator().manual_seed(0)).distribution
    assert isinstance(q, sp.SparseDistribution)
    mean = torch.zeros(20, 6).index_add(0, q.row, q.probs.unsqueeze(-1) * seen[0])
    torch.testing.assert_close(mean, sp.sparsemap(vae.model.scores(x), vae.model.structure).mean)
    vae.model.eval()
    vae.model.estimate(x, torch.Generator().manual_seed(0))
    assert (seen[0].shape == seen[1].shape and torch.equal(*seen)) == (order == "fixed")


def test_the_weight_of_the_entropy_and_the_temperature_of_scores() -> None:
    one, two = (experiment(entropy=weight) for weight in (1.0, 2.0))
    x = one.images.train.x[:32]
    steps = [vae.model({"x": x}, torch.Generator()) for vae in (one, two)]
    torch.testing.assert_close(steps[0].objective - steps[1].objective, steps[0].terms["entropy"])
    assert steps[0].terms["elbo"] == steps[1].terms["elbo"]
    torch.testing.assert_close(one.model.scores(x), 4 * experiment(score_temperature=4.0).model.scores(x))


@pytest.mark.parametrize("method", ["topk", "sparsemap-budget", "gumbel"])
def test_centred_scores_keep_bits_in_use(method: str) -> None:
    """A bit that starts with a large bias stays 1 for all images, unless the mean score is subtracted."""
    plain, centred = (experiment(method=method, score_centre=centre) for centre in ("none", "batch"))
    used = []
    for vae in (plain, centred):
        with torch.no_grad():
            list(vae.model.inference.parameters())[-1][:2] = 30.0
        train(vae, 15)
        used.append(vae.evaluate(torch.Generator().manual_seed(0), n_samples=8)["used_bits"])
    assert used[0] <= 4 < used[1]
    x = plain.images.train.x[:32]
    assert centred.model.train().scores(x).mean(0).abs().max() < 1e-5
    one_by_one = torch.cat([centred.model.eval().scores(x[i : i + 1]) for i in range(32)])
    torch.testing.assert_close(one_by_one, centred.model.scores(x))


def test_a_bit_is_in_use_if_both_values_occur_in_one_percent_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = experiment(bits=7)
    n_on = torch.tensor([0, 1, 2, 98, 198, 199, 200])
    scores = torch.where(torch.arange(200).unsqueeze(1) < n_on, 1.0, -1.0)
    monkeypatch.setattr(vae.model, "scores", lambda x: scores)
    assert vae.n_used_bits(vae.images.train.x) == 3  # 2, 98 and 198 of 200


def test_nan_is_reported_for_its_row_only() -> None:
    vae = experiment(score_centre="batch")
    scores = torch.zeros(8, 6)
    scores[3] = torch.nan
    assert vae.model.centring is not None
    with pytest.raises(ValueError, match=r"row 3 .*NaN"):
        vae.model.estimator(vae.model.centring(scores), vae.model.structure, lambda z, row: z.sum(-1))


def test_seeds() -> None:
    state = torch.get_rng_state()
    vaes = [experiment(method="nvil", seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    for vae in vaes:
        train(vae, 1)
    first, again, other = (vae.model.state_dict() for vae in vaes)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_batches_contain_every_image_once() -> None:
    vae = experiment(batch_size=25)
    order = vae.start_epoch(torch.Generator().manual_seed(0))
    seen = torch.cat([vae.batch(order, i, torch.Generator())["x"] for i in range(vae.n_steps)])
    assert torch.equal(order.sort().values, torch.arange(200))
    assert torch.equal(seen, vae.images.train.x[order])
    assert not torch.equal(order, vae.start_epoch(torch.Generator().manual_seed(1)))


def test_validation_uses_discrete_codes_and_does_not_depend_on_batches() -> None:
    whole, parts = (experiment(batch_size=size).validate(torch.Generator(), limit=40) for size in (40, 17))
    assert whole == pytest.approx(parts, rel=1e-5)
    vae, seen = experiment(method="gumbel"), []
    vae.model.generative.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    train(vae, 1)
    assert not any(torch.equal(z, z.round()) for z in seen)
    seen.clear()
    assert vae.validate(torch.Generator())["calls"] == 1
    assert seen
    assert all(torch.equal(z, z.round()) for z in seen)


def test_mixed_precision_and_chunks() -> None:
    vae = experiment(method="dense")
    x, generator = vae.images.train.x[:32], torch.Generator()
    plain = vae.model({"x": x}, generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = vae.model({"x": x}, generator)
    assert mixed.objective.dtype == torch.float32
    torch.testing.assert_close(mixed.objective, plain.objective, rtol=1e-2, atol=0.0)
    vae.model.estimator = sp.estimators.Dense(chunk_size=100)  # of 64 * 32 atoms
    chunked = vae.model({"x": x}, generator)
    weight = next(vae.model.inference.parameters())
    torch.testing.assert_close(*(torch.autograd.grad(step.objective, weight)[0] for step in (chunked, plain)))


def test_digits_are_the_default() -> None:
    vae = BitvectorVAE(Args(method="topk"), CPU)
    assert (vae.n_steps, vae.model.n_pixels, vae.model.n_levels) == (1197 // 64, 64, 17)
    assert vae.model.pixels(vae.images.train.x).max() == 1
    assert vae.validate(torch.Generator(), split="test", limit=10)["calls"] > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "bitvector-vae has no method 'magic'"),
        ({"method": "dense", "bits": 32}, "dense enumerates all .* --bits must be at most 12, got 32; topk"),
        (
            {"method": "sparsemap", "solver": "slow"},
            "--solver must be one of .*'nested', 'systematic' or 'active-set', got 'slow'",
        ),
        ({"method": "sparsemap-budget", "solver": "nested"}, "--solver nested does not support a budget"),
        ({"method": "sparsemap", "bit_order": "any"}, "--bit-order must be one of 'fixed', 'random' or 'sorted', got 'any'"),
        ({"method": "topk", "bit_order": "random"}, "--bit-order random requires the systematic solver of sparsemap"),
        (
            {"method": "sfe", "solver": "systematic", "bit_order": "random"},
            "--bit-order random requires the systematic solver of sparsemap",
        ),
        (
            {"method": "topk-bound", "entropy": 2},
            "the objective of topk-bound has no entropy term, so --entropy must be 1, got 2",
        ),
        ({"method": "wake-wake", "k": 1}, "wake-wake compares codes, so --k must be at least 2, got 1"),
        ({"method": "distinct-bound", "k": 1}, "distinct-bound compares codes, so --k must be at least 2"),
        (
            {"method": "distinct-bound", "entropy": 2},
            "the objective of distinct-bound has no entropy term, so --entropy must be 1",
        ),
        ({"method": "sparsemap-budget", "budget": 0}, "--budget must be from 1 to 6, the number of bits, got 0"),
        ({"method": "sparsemap-budget", "budget": 7}, "--budget must be from 1 to 6, the number of bits, got 7"),
        ({"score_centre": "all"}, "--score-centre must be one of 'none' or 'batch', got 'all'"),
        ({"score_centre": "batch", "batch_size": 1}, "--score-centre batch needs a --batch-size of at least 2, got 1"),
        ({"score_temperature": 0.0}, "--score-temperature must be greater than 0, got 0.0"),
        ({"batch_size": 201}, "--batch-size must be at most 200"),
    ],
)
def test_invalid_options(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"method": "topk", "bits": 6, "batch_size": 32} | changes

    def build() -> None:
        args = make_args("bitvector-vae", options.pop("method"), options)
        assert isinstance(args, Args)
        BitvectorVAE(args, CPU, fake_images())

    with pytest.raises(ValueError, match=message):
        build()
