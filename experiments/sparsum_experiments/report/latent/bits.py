"""The bit-vector VAE: a decoder that runs in the page, and the codes of some test images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Self

import numpy as np
import pydantic
import torch
from torch import Tensor

import sparsum as sp
from sparsum_experiments.bitvector_vae import BitvectorVAE, Model
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.latent import view
from sparsum_experiments.report.latent.view import AbstractImagesView, Part, Probability, Raw

# How many test images can be chosen from, and how many codes of each are listed.
_N_EXAMPLES, _N_ATOMS = 12, 10


class Atom(Part):
    """A code, and its probability given the image."""

    bits: str
    probability: Probability


class Example(view.ImageExample):
    """A test image with its most probable codes, best first; ``n_atoms`` have mass, or all have if it is 0."""

    n_atoms: Annotated[int, pydantic.Field(ge=0, le=2**53)]
    atoms: Annotated[list[Atom], pydantic.Field(min_length=1, max_length=64)]


class BitsView(AbstractImagesView):
    """A decoder in half precision, and test images with their codes.

    The weights are in the order in which the decoder uses them, each followed by its biases: of the hidden layer
    (n_hidden, n_bits), of the features of pixels (n_pixels * rank, n_hidden), of the levels (n_levels, rank).
    """

    kind: ClassVar[str] = "bits"
    title: ClassVar[str] = "What the bits learned"
    n_levels: Annotated[int, pydantic.Field(ge=2, le=256)]
    n_bits: Annotated[int, pydantic.Field(ge=1, le=4096)]
    n_hidden: Annotated[int, pydantic.Field(ge=1, le=1024)]
    rank: Annotated[int, pydantic.Field(ge=1, le=16)]
    weights: Raw
    examples: Annotated[list[Example], pydantic.Field(min_length=1, max_length=64)]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        n_weights = self.n_hidden * (self.n_bits + 1) + self.n_pixels * self.rank * (self.n_hidden + 1)
        view.check_size(self.weights, 2 * (n_weights + self.n_levels * (self.rank + 1)), "weights")
        if not np.isfinite(np.frombuffer(self.weights, "<f2")).all():
            raise ValueError("weights must be finite numbers")
        for i, example in enumerate(self.examples):
            view.check_size(example.image, self.n_pixels, f"examples.{i}.image")
            if (level := max(example.image)) >= self.n_levels:
                raise ValueError(f"examples.{i}.image has a grey level of {level}, and there are {self.n_levels}")
            if any(len(atom.bits) != self.n_bits or set(atom.bits) - {"0", "1"} for atom in example.atoms):
                raise ValueError(f"examples.{i} has a code that is not of {self.n_bits} bits")
        return self

    @classmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:
        """The decoder as it is; the codes are those of the method's own posterior."""
        assert isinstance(experiment, BitvectorVAE)
        images, model = experiment.images, experiment.model
        chosen = view.one_of_each_class(images, _N_EXAMPLES)
        x = images.test.x[chosen]
        every = zip(view.class_names(images, chosen), x.cpu().numpy(), atoms_of(model, x, generator), strict=True)
        layers = [layer for layer in (*model.generative, model.levels) if isinstance(layer, torch.nn.Linear)]
        height, width = images.shape
        return cls(
            height=height,
            width=width,
            n_levels=images.n_levels,
            n_bits=experiment.args.bits,
            n_hidden=layers[0].out_features,
            rank=model.levels.in_features,
            weights=halves(tensor for layer in layers for tensor in (layer.weight, layer.bias)),
            examples=[
                Example(label=name, image=image.tobytes(), n_atoms=n, atoms=atoms) for name, image, (n, atoms) in every
            ],
        )


def halves(tensors: Iterable[Tensor]) -> bytes:
    """Tensors one after the other, in half precision with the lower byte first; a ValueError if a number does not fit."""
    flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors]).half()
    if not flat.isfinite().all():
        raise ValueError("a weight is not finite in half precision")
    return flat.numpy().astype("<f2").tobytes()


def atoms_of(model: Model, x: Tensor, generator: torch.Generator) -> list[tuple[int, list[Atom]]]:
    """For each image the number of codes that have mass, 0 if all have, and the most probable ones."""
    q = model.posterior(x, generator)
    if isinstance(q, sp.Gibbs):
        codes = q.structure.topk(model.scores(x), _N_ATOMS)
        probs = q.log_prob(codes.transpose(0, 1)).exp().t()
        return [(0, _atoms(*each)) for each in zip(codes, probs, strict=True)]
    if not isinstance(q, sp.SparseDistribution):
        raise ValueError(f"the codes of a {type(q).__name__} cannot be listed")
    rows = [q.row == i for i in range(q.batch_shape.numel())]
    return [(int(row.sum()), _atoms(q.atoms[row], q.probs[row])) for row in rows]


def _atoms(codes: Tensor, probs: Tensor) -> list[Atom]:
    """The most probable ones of codes (n, n_bits) with their probabilities (n,)."""
    best = probs.argsort(descending=True, stable=True)[:_N_ATOMS]
    texts = ["".join(map(str, code)) for code in codes[best].round().int().tolist()]
    numbers = [min(1.0, float(f"{p:.6g}")) for p in probs[best].tolist()]
    return [Atom(bits=text, probability=p) for text, p in zip(texts, numbers, strict=True)]
