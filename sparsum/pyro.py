"""Sparse distributions in Pyro: ``import sparsum.pyro``, which needs the extra ``pyro``.

The import lets `pyro.sample` take distributions of this library, in models and guides, and brings `SparseEnum_ELBO`, which
sums over their atoms.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from sparsum.distribution import SparseDistribution, UniformOver
from sparsum.gibbs import Gibbs

try:
    from pyro.distributions import MaskedDistribution, TorchDistribution
    from pyro.distributions.torch_distribution import TorchDistributionMixin
    from pyro.infer import TraceEnum_ELBO
    from pyro.infer.util import is_validation_enabled
    from pyro.poutine.messenger import Messenger
except ModuleNotFoundError as error:
    raise ImportError("sparsum.pyro needs pyro-ppl, which is not installed: pip install 'sparsum[pyro]'") from error

_SHOWN_ROWS = 5

# What Pyro asks of a distribution beyond torch. Its mixin has a metaclass, so classes are registered and not derived.
for _kind in (SparseDistribution, UniformOver, Gibbs):
    TorchDistributionMixin.register(_kind)
    for _name in ("__call__", "event_dim", "expand_by", "mask", "score_parts", "shape"):
        setattr(_kind, _name, getattr(TorchDistributionMixin, _name))


class SparseEnum_ELBO(TraceEnum_ELBO):  # noqa: N801 (the names of Pyro's bounds are written like this)
    """An ELBO that sums over the atoms of sparse distributions in the guide, instead of all their values.

    It is `pyro.infer.TraceEnum_ELBO` with another table of values: each site of the guide whose distribution is a
    `SparseDistribution`, over any structure, is enumerated in parallel over as many values as its largest row has atoms. The
    model is evaluated at these values alone, so it has to broadcast over a new dimension on the left, as it does for any
    parallel enumeration. Value and gradient are exact. Nothing has to be marked by ``infer``; a site with
    ``infer={"num_samples": n}`` is sampled. Other sites are handled as by ``TraceEnum_ELBO``.

    >>> import pyro
    >>> import pyro.distributions as dist
    >>> import sparsum as sp
    >>> x, scores = torch.tensor([0.3, 0.9]), torch.tensor([[1.0, 0.8, -0.5], [0.0, 0.0, 3.0]], requires_grad=True)
    >>> def model():
    ...     with pyro.plate("data", 2):
    ...         z = pyro.sample("z", dist.Categorical(torch.ones(3)))
    ...         pyro.sample("x", dist.Normal(z.float(), 1.0), obs=x)
    >>> def guide():
    ...     with pyro.plate("data", 2):
    ...         pyro.sample("z", sp.sparsemap(scores, sp.OneOf(3)))  # two values of z in place of three
    >>> round(SparseEnum_ELBO().loss(model, guide), 4)
    4.0921

    Args:
        kwargs: those of ``TraceEnum_ELBO``, such as ``num_particles`` and ``max_plate_nesting``.

    Raises:
        ValueError: during inference, naming the site: if a dimension of the batch is in no `pyro.plate`, if the site should
            be enumerated sequentially, or if the model gives no mass to a value that has mass in the guide, so that the
            bound is minus infinity. The last is checked while `pyro.enable_validation` is on, which is Pyro's default.
    """

    def _get_traces(self, model: Callable[..., Any], guide: Callable[..., Any], args: Any, kwargs: Any) -> Iterator[Any]:
        yield from super()._get_traces(model, _OverAtoms(self)(guide), args, kwargs)

    def _get_trace(self, model: Callable[..., Any], guide: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
        model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        if is_validation_enabled():
            for name, site in guide_trace.nodes.items():
                if site["type"] == "sample" and isinstance(_inner(site["fn"]), _Atoms) and name in model_trace:
                    _check_mass(name, site["log_prob"], model_trace.nodes[name]["log_prob"], self.max_plate_nesting)
        return model_trace, guide_trace


class _OverAtoms(Messenger):
    """Marks sparse sites of the guide for parallel enumeration over their atoms, which Pyro then does."""

    def __init__(self, elbo: SparseEnum_ELBO) -> None:
        super().__init__()
        self.elbo = elbo
        self.dims = set[int]()  # those of particles and of the sites that were enumerated so far

    def __enter__(self) -> Any:
        are_particles = self.elbo.vectorize_particles and self.elbo.num_particles > 1
        self.dims = {-self.elbo.max_plate_nesting} if are_particles else set()
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        name, fn, infer = msg["name"], msg["fn"], msg["infer"]
        q = _inner(fn)
        if not isinstance(q, SparseDistribution) or msg["is_observed"] or infer.get("num_samples") is not None:
            return
        if infer.get("enumerate") == "sequential":
            raise ValueError(f"infer={{'enumerate': 'sequential'}} is not possible at the sparse site {name!r}: remove it")
        plates = {frame.dim for frame in msg["cond_indep_stack"]}
        for dim in range(-len(q.batch_shape), 0):
            if q.batch_shape[dim] > 1 and dim not in plates | self.dims:
                raise ValueError(
                    f"site {name!r} has a sparse distribution of shape {tuple(q.batch_shape)}, whose dimension {dim} is "
                    "in no pyro.plate: put the site in a plate of this dimension, in the model and in the guide"
                )
        infer["enumerate"] = "parallel"
        msg["fn"] = _Atoms(q, infer)
        if fn is not q:
            msg["fn"] = copy.copy(fn)
            msg["fn"].base_dist = _Atoms(q, infer)

    def _pyro_post_sample(self, msg: Any) -> None:
        self.dims.add(msg["infer"].get("_enumerate_dim", 0))


class _Atoms(TorchDistribution):
    """A sparse distribution whose support, for Pyro, is a table of its atoms.

    Args:
        q: the distribution.
        infer: the options of the site, where Pyro notes the dimension in which it enumerates the values.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_enumerate_support = True

    def __init__(self, q: SparseDistribution, infer: dict[str, Any]) -> None:
        self.q, self.infer = q, infer
        super().__init__(q.batch_shape, q.event_shape, validate_args=False)

    @functools.cached_property
    def table(self) -> tuple[Tensor, Tensor]:
        """Values, (n, *batch_shape, *event_shape), and probabilities, (n, *batch_shape)."""
        values, probs = self.q.to_padded()
        n_batch = len(self.batch_shape)
        return values.movedim(n_batch, 0), probs.movedim(n_batch, 0)

    @constraints.dependent_property
    def support(self) -> Any:
        return self.q.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> _Atoms:
        return _Atoms(self.q.expand(batch_shape), self.infer)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.q.sample(sample_shape)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """One value per place in the table, which differ between rows, expanded or not: (n, *batch_shape, *event_shape)."""
        return self.table[0]

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability of each place of the table if the values are enumerated, -inf for padding."""
        dim = self.infer.get("_enumerate_dim")
        if dim is None:  # while Pyro finds out how plates are nested
            return self.q.log_prob(value)
        probs = self.table[1]
        log_probs = torch.where(probs > 0, probs.clamp_min(torch.finfo(probs.dtype).tiny).log(), -torch.inf)
        n_missing = -dim - log_probs.ndim
        if n_missing >= 0:
            return log_probs.reshape(len(log_probs), *[1] * n_missing, *self.batch_shape)
        return log_probs.transpose(0, dim).squeeze(0)  # the batch has dimensions of other enumerated sites on the left


def _inner(fn: Any) -> Any:
    """The distribution inside a mask."""
    return fn.base_dist if isinstance(fn, MaskedDistribution) else fn


def _check_mass(name: str, guide: Tensor, model: Tensor, nesting: int) -> None:
    """Raise a ValueError if the model gives no mass to an atom."""
    is_bad = (guide > -torch.inf) & (model == -torch.inf)
    if is_bad.any():
        n = min(nesting, is_bad.ndim)
        rows = is_bad.reshape(-1, *is_bad.shape[is_bad.ndim - n :]).any(0).nonzero().tolist()
        where = f" in rows {rows[:_SHOWN_ROWS]}{' and others' if len(rows) > _SHOWN_ROWS else ''}" if n else ""
        raise ValueError(
            f"the model gives no mass to a value of site {name!r} that has mass in the guide{where}, so that the ELBO is "
            "minus infinity: give the prior more support, or mask the scores of the guide where the prior is 0"
        )
