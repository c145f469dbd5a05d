"""The bit-vector VAE: a decoder that runs in the page, and the codes of some test images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

import sparsum as sp
from sparsum_experiments.bitvector_vae import BitvectorVAE, Model
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.html import Markup, element, json_script
from sparsum_experiments.report.latent.encode import base64_text, halves
from sparsum_experiments.report.latent.fields import Fields
from sparsum_experiments.report.latent.view import (
    MAX_ATOMS,
    MAX_EXAMPLES,
    MAX_SIDE,
    AbstractView,
    class_name,
    one_of_each_class,
)

# How many test images can be chosen from, and how many codes of each are listed.
_N_EXAMPLES, _N_ATOMS = 12, 10
_MAX_BITS, _MAX_HIDDEN, _MAX_RANK = 4096, 1024, 16


@dataclass(frozen=True)
class Atom:
    """A code, and its probability given the image."""

    bits: str
    probability: float


@dataclass(frozen=True)
class Example:
    """A test image with its most probable codes.

    Args:
        label: what is on it.
        image: a byte for each pixel, its grey level.
        n_atoms: how many codes have mass; 0 where all have.
        atoms: the most probable ones, best first.
    """

    label: str
    image: bytes
    n_atoms: int
    atoms: list[Atom]


@dataclass(frozen=True)
class BitsView(AbstractView):
    """A decoder in half precision, and test images with their codes.

    The weights stand in the order in which the decoder uses them, each with its biases after it: of the hidden layer
    (n_hidden, n_bits), of the features of pixels (n_pixels * rank, n_hidden), of the levels (n_levels, rank).
    """

    title: ClassVar[str] = "What the bits learned"
    height: int
    width: int
    n_levels: int
    n_bits: int
    n_hidden: int
    rank: int
    weights: bytes
    examples: list[Example]

    @classmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:
        """The decoder as it is; the codes are those of the method's own posterior."""
        assert isinstance(experiment, BitvectorVAE)
        images, model = experiment.images, experiment.model
        chosen = one_of_each_class(images, _N_EXAMPLES)
        x, labels = images.test.x[chosen], images.test.y[chosen].tolist()
        codes = atoms_of(model, x, generator)
        pairs = zip(x, labels, codes, strict=True)
        layers = [layer for layer in (*model.generative, model.levels) if isinstance(layer, torch.nn.Linear)]
        return cls(
            *images.shape,
            n_levels=images.n_levels,
            n_bits=experiment.args.bits,
            n_hidden=layers[0].out_features,
            rank=model.levels.in_features,
            weights=halves(tensor for layer in layers for tensor in (layer.weight, layer.bias)),
            examples=[Example(class_name(images, y), image.cpu().numpy().tobytes(), *found) for image, y, found in pairs],
        )

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read and check."""
        height, width = fields.whole("height", 1, MAX_SIDE), fields.whole("width", 1, MAX_SIDE)
        n_levels, n_bits = fields.whole("n_levels", 2, 256), fields.whole("n_bits", 1, _MAX_BITS)
        n_hidden, rank = fields.whole("n_hidden", 1, _MAX_HIDDEN), fields.whole("rank", 1, _MAX_RANK)
        n_pixels = height * width
        n_weights = n_hidden * (n_bits + 1) + n_pixels * rank * (n_hidden + 1) + n_levels * (rank + 1)
        weights = fields.halves("weights", n_weights)
        examples = [_example_from(part, n_pixels, n_levels, n_bits) for part in fields.parts("examples", 1, MAX_EXAMPLES)]
        return cls(height, width, n_levels, n_bits, n_hidden, rank, weights, examples)

    def to_json(self) -> dict[str, Any]:
        """Weights and images in base64."""
        examples = [
            {
                "label": example.label,
                "image": base64_text(example.image),
                "n_atoms": example.n_atoms,
                "atoms": [vars(atom) for atom in example.atoms],
            }
            for example in self.examples
        ]
        return vars(self) | {"weights": base64_text(self.weights), "examples": examples}

    def markup(self) -> Markup:
        """The data; ``latent.js`` makes the switches and pictures of it."""
        about = (
            f"Each of the {self.n_bits} bits is a switch; the decoder runs in this page. Choose a test image and one of its "
            "codes, then switch bits: those that differ from the chosen code are marked."
        )
        return element(
            "div",
            element("p", about, class_="soft"),
            element("noscript", element("p", "The switches need JavaScript.")),
            json_script(self.to_json()),
            class_="latent-bits",
            data_latent="bits",
        )


def atoms_of(model: Model, x: Tensor, generator: torch.Generator) -> list[tuple[int, list[Atom]]]:
    """For each image the number of codes that have mass, 0 if all have, and the most probable ones."""
    q = model.posterior(x, generator)
    found = _of_dense(q, model.scores(x)) if isinstance(q, sp.Gibbs) else _of_sparse(q)
    return [_of_row(*each) for each in found]


def _of_dense(q: sp.Gibbs, scores: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """As `_of_sparse`, where all codes have mass."""
    codes = q.structure.topk(scores, _N_ATOMS)
    probs = q.log_prob(codes.transpose(0, 1)).exp().t()
    return [(0, *each) for each in zip(codes, probs, strict=True)]


def _of_sparse(q: Distribution) -> list[tuple[int, Tensor, Tensor]]:
    """Of each row the number of codes with mass, and the most probable codes (n, n_bits) with their probabilities (n,)."""
    if not isinstance(q, sp.SparseDistribution):
        raise ValueError(f"the codes of a {type(q).__name__} cannot be listed")
    found = []
    for i in range(q.batch_shape.numel()):
        codes, probs = q.atoms[q.row == i], q.probs[q.row == i]
        best = probs.argsort(descending=True, stable=True)[:_N_ATOMS]
        found.append((len(probs), codes[best], probs[best]))
    return found


def _of_row(n_atoms: int, codes: Tensor, probs: Tensor) -> tuple[int, list[Atom]]:
    texts = ["".join("1" if bit else "0" for bit in code) for code in codes.round().int().tolist()]
    numbers = [min(1.0, float(f"{p:.6g}")) for p in probs.tolist()]
    return n_atoms, [Atom(text, p) for text, p in zip(texts, numbers, strict=True)]


def _example_from(part: Fields, n_pixels: int, n_levels: int, n_bits: int) -> Example:
    image = part.raw("image", n_pixels)
    if max(image) >= n_levels:
        raise ValueError(f"an image has a grey level of {max(image)}, and there are {n_levels}")
    atoms = []
    for each in part.parts("atoms", 1, MAX_ATOMS):
        bits = each.text("bits", n_bits)
        if len(bits) != n_bits or set(bits) - {"0", "1"}:
            raise ValueError(f"a code is not of {n_bits} bits")
        atoms.append(Atom(bits, each.number("probability", 0, 1)))
    return Example(part.text("label"), image, part.whole("n_atoms", 0, 2**53), atoms)
