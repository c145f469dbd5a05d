"""Training with torch's compiler: steps with sparse sums are compiled, and train as they do eagerly."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import sparsum as sp

pytestmark = pytest.mark.integrations

N_BITS, N_CODES, N_STEPS = 16, 12, 25


class Autoencoder(nn.Module):
    """A VAE whose latent variables are bits; returns its objective."""

    def __init__(self, max_atoms: int | None) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, N_BITS), sp.nn.ScoreNorm(N_BITS))
        self.decoder = nn.Sequential(nn.Linear(N_BITS, 32), nn.ReLU(), nn.Linear(32, 64))
        self.max_atoms = max_atoms

    def forward(self, x: Tensor) -> Tensor:
        q = sp.sparsemap(self.encoder(x), sp.Bits(N_BITS), max_atoms=self.max_atoms)
        objective: Tensor = (q.expect(lambda z, row: (self.decoder(z) - x[row]).square().sum(-1)) - q.entropy()).mean()
        return objective


class Mixture(nn.Module):
    """Each image is one of a few prototypes, by entmax scores of the network."""

    def __init__(self, max_atoms: int | None) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, N_CODES), sp.nn.ScoreNorm(N_CODES))
        self.prototypes = nn.Parameter(torch.rand(N_CODES, 64))
        self.max_atoms = max_atoms

    def forward(self, x: Tensor) -> Tensor:
        q = sp.sparsemap(self.encoder(x), sp.OneOf(N_CODES), max_atoms=self.max_atoms)
        objective: Tensor = q.expect(lambda z, row: (sp.embed(z, self.prototypes) - x[row]).square().sum(-1)).mean()
        return objective


@pytest.mark.parametrize(
    ("kind", "max_atoms", "backend"),
    [
        (Autoencoder, N_BITS + 1, "aot_eager"),
        (Autoencoder, None, "aot_eager"),
        (Mixture, 3, "inductor"),
        (Mixture, None, "aot_eager"),
    ],
)
def test_a_compiled_model_trains_as_an_eager_one(
    kind: type[Autoencoder | Mixture], max_atoms: int | None, backend: str
) -> None:
    """Each step has the loss, the gradient and the state of the eager model, and they train.

    With ``max_atoms`` one graph serves all steps; without, it breaks where the size of a support is read.
    """
    torch.manual_seed(0)
    model = kind(max_atoms).double()
    eager = copy.deepcopy(model)
    torch.compiler.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=max_atoms is not None)
    images = torch.tensor(load_digits().data) / 16
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    with warnings.catch_warnings():
        if max_atoms is None:
            warnings.simplefilter("default")  # torch warns of breaks
        for x in images[: 64 * N_STEPS].split(64):
            eager.load_state_dict(model.state_dict())
            ours, theirs = compiled(x), eager(x)
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            optimizer.zero_grad()
            ours.backward()
            grads = [parameter.grad for parameter in model.parameters()]
            torch.testing.assert_close(grads, list(torch.autograd.grad(theirs, list(eager.parameters()))))
            torch.testing.assert_close(model.state_dict(), eager.state_dict())
            optimizer.step()
            losses.append(ours.item())
    assert losses[-1] < 0.7 * losses[0]
    assert counter.op_count > 10
    assert (counter.frame_count == 1) == (max_atoms is not None)
