"""The semisupervised VAE matches the paper and its code."""

from __future__ import annotations

import math
import pathlib

import pytest
import torch
from sparsum_experiments import ssvae
from torch.nn import functional

import sparsum as sp

CPU = torch.device("cpu")


def n_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path))


def test_the_sizes_of_the_networks() -> None:
    model = ssvae.Model(ssvae.Args(method="sparse"), n_pixels=784, unlabelled_weight=9.0)
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in linear]
    classifier = [(784, 256), (256, 256), (256, 256), (256, 10)]
    assert sizes == [*classifier, (794, 128), (128, 128), (128, 16), (18, 128), (128, 128), (128, 784)]
    assert n_parameters(model.classifier) == 335_114
    assert n_parameters(model.inference) == 120_336
    assert n_parameters(model.generative) == 120_080
    nvil = ssvae.Model(ssvae.Args(method="nvil"), n_pixels=784, unlabelled_weight=9.0)
    assert n_parameters(nvil.estimator) == 784 * 512 + 512 + 2 * (512 * 512 + 512) + 512 + 1


def test_the_defaults_and_presets_are_those_of_the_paper() -> None:
    from sparsum_experiments.registry import make_args

    rates = {"sparse": 5e-4, "dense": 1e-3, "nvil": 1e-3, "sum-and-sample": 1e-3, "gumbel": 1e-3, "st-gumbel": 1e-3}
    for method, rate in (rates | {"sfe": 1e-4, "sfe-plus": 1e-4}).items():
        args = make_args("ssvae", method, {"data": "mnist"})
        assert args.lr == rate
        assert args.epochs == 200
        assert args.batch_size == 64
    args = make_args("ssvae", "gumbel", {"data": "mnist"})
    assert (args.temperature_decay, args.temperature_every) == (1e-4, 1000)


def test_the_loss_by_hand() -> None:
    """One labelled and one unlabelled image of two pixels, by the dense sum, with the same noise."""
    torch.manual_seed(0)
    model = ssvae.Model(ssvae.Args(method="dense", latent=3), n_pixels=2, unlabelled_weight=7.0)
    labelled, unlabelled, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([4])
    step = model({"x": torch.cat([labelled, unlabelled]), "y": y}, torch.Generator().manual_seed(1))

    noise = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))  # the first row is for the labelled image

    def negative_elbo(x: torch.Tensor, z: int, noise: torch.Tensor) -> torch.Tensor:
        one_hot = torch.eye(10)[z]
        mean, log_std = model.inference(torch.cat([x, one_hot])).chunk(2)
        probs = torch.sigmoid(model.generative(torch.cat([mean + log_std.exp() * noise, one_hot])))
        log_likelihood = torch.where(x == 1, probs, 1 - probs).log().sum()
        q = torch.distributions.Normal(mean, log_std.exp())
        p = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        divergence = torch.distributions.kl_divergence(q, p).sum()
        return -log_likelihood + divergence + math.log(10)  # the last is -log p(z)

    wanted = negative_elbo(labelled[0], 4, noise[0])
    wanted = wanted + functional.cross_entropy(model.classifier(labelled), y)
    probs = model.classifier(unlabelled)[0].softmax(0)
    expected = sum(probs[z] * negative_elbo(unlabelled[0], z, noise[1 + z]) for z in range(10))
    entropy = -(probs * probs.log()).sum()
    wanted = wanted + 7 * (expected - entropy)
    torch.testing.assert_close(step.objective, wanted)
    torch.testing.assert_close(step.terms["entropy"], entropy.detach())
    assert step.calls.tolist() == [10]


@pytest.mark.parametrize("method", ssvae.SemisupervisedVAE.methods)
def test_every_method_trains(method: str) -> None:
    experiment = ssvae.SemisupervisedVAE(ssvae.Args(method=method, warm_epochs=1, batch_size=32), CPU)
    experiment.start(lambda text: None)
    optimiser = experiment.optimiser()
    generator = torch.Generator().manual_seed(0)
    order = experiment.start_epoch(generator)
    assert order.shape == (2, experiment.n_steps * 32)
    assert experiment.images.is_labelled[order[0]].all()
    assert not experiment.images.is_labelled[order[1]].any()
    elbos = []
    for i in range(30):
        step = experiment.model(experiment.batch(order, i, generator), generator)
        optimiser.zero_grad()
        step.objective.backward()
        optimiser.step()
        elbos.append(step.terms["elbo"].item())
    assert sum(elbos[-5:]) > sum(elbos[:5])
    with torch.no_grad():
        metrics = experiment.validate(generator)
    assert set(metrics) == {"elbo", "accuracy", "entropy", "calls", "used_classes"}
    assert 1 <= metrics["used_classes"] <= 10
    for weights in experiment.model.classifier.parameters():
        torch.nn.init.zeros_(weights)
    assert experiment.usage(generator, "test", 50) == {"used_classes": 1.0}
    assert metrics["calls"] <= 10


def test_images_are_binarised_with_their_grey_levels_as_probabilities() -> None:
    experiment = ssvae.SemisupervisedVAE(ssvae.Args(method="sparse"), CPU)
    x = experiment.images.train.x[:1].expand(20_000, -1)
    binary = experiment.binarised(x, torch.Generator().manual_seed(0))
    assert set(binary.unique().tolist()) == {0.0, 1.0}
    assert (binary.mean(0) - x[0] / 16).abs().max() < 0.02


def test_methods_with_the_same_loss_share_one_warm_start(tmp_path: pathlib.Path) -> None:
    experiments = {
        name: ssvae.SemisupervisedVAE(ssvae.Args(method=method, seed=seed, warm_epochs=2), CPU)
        for name, method, seed in (("a", "dense", 0), ("b", "nvil", 5), ("c", "sparse", 0))
    }
    files = tmp_path / "warm-starts"
    for name, n_files in (("a", 1), ("b", 1), ("c", 2)):
        experiments[name].start(lambda text: None)
        assert len(list(files.glob("*.pt"))) == n_files
    weights = {name: experiment.model.state_dict()["classifier.0.weight"] for name, experiment in experiments.items()}
    assert torch.equal(weights["a"], weights["b"])
    assert not torch.equal(weights["a"], weights["c"])
    assert experiments["c"].model.classification_loss is sp.sparsemax_loss
