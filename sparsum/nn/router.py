"""Choose among many options, or among a few candidates of each example."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_bool, check_floating, check_int, check_number
from sparsum.distribution import SparseDistribution
from sparsum.inference import check_max_atoms, sparsemap
from sparsum.simplex.arguments import can_look_at
from sparsum.structures import OneOf


class Router(torch.nn.Module):
    r"""A layer that sends each query to a few of its options: experts, documents, actions, items of a vocabulary.

    .. math:: q = \operatorname{sparsemax}\Bigl(\frac{\langle x, w_i \rangle}{\tau \sqrt{\text{dim}}}\Bigr)_{i \in C(x)}

    Each option i has a key :math:`w_i`, a row of ``weight``. The candidates C(x) are all options, or those that are passed,
    for example the results of a nearest-neighbour search. The exact sum over the options that receive mass then replaces
    the single sampled option:

    >>> router = Router(dim=8, n_options=1_000_000)
    >>> x, candidates = torch.randn(4, 8), torch.randint(1_000_000, (4, 50))
    >>> q = router(x, candidates)
    >>> loss = q.expect(lambda option, row: (option % 7).float())  # called with the options that have mass, and their rows
    >>> loss.mean().backward()
    >>> loss.shape, q.structure
    (torch.Size([4]), OneOf(n=1000000))

    Given c candidates, a query takes O(c dim) operations, whatever the number of options. By default the gradient of all
    keys is a dense tensor; ``sparse=True`` makes it follow the candidates, for `torch.optim.SparseAdam` or SGD.

    A query whose scores are far apart has a single option, and then no gradient. Start with a temperature near 10 if most
    of the options should be tried, and look at ``q.saturation``.

    In training mode, the router counts how often options are used; see `usage`. Under DistributedDataParallel the counts are
    those of the first process. With ``max_atoms``, `torch.compile` traces the module as a whole.

    Args:
        dim: the size of queries and keys.
        n_options: the number of options.
        max_atoms: the largest number of options per query, as in `sparsum.sparsemap`; by default unlimited.
        temperature: divides the scores. The larger it is, the more options have mass.
        sparse: whether the gradient of the keys is a sparse tensor, as in `torch.nn.Embedding`; requires candidates.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.

    References:
        - Outrageously large neural networks: the sparsely-gated mixture-of-experts layer (Shazeer et al., 2017),
          https://arxiv.org/abs/1701.06538
    """

    n_queries: Tensor
    counts: Tensor

    def __init__(
        self, dim: int, n_options: int, *, max_atoms: int | None = None, temperature: float = 1.0, sparse: bool = False
    ) -> None:
        super().__init__()
        self.dim, self.n_options = check_int("dim", dim, least=1), check_int("n_options", n_options, least=1)
        self.max_atoms = check_max_atoms(max_atoms)
        self.temperature = check_number("temperature", temperature, above=0)
        check_bool("sparse", sparse)
        self.sparse = sparse
        self.weight = torch.nn.Parameter(torch.randn(n_options, dim))
        self.register_buffer("counts", torch.zeros(n_options), persistent=False)
        self.register_buffer("n_queries", torch.zeros(()), persistent=False)

    def forward(
        self,
        x: Tensor,  # shape: (*batch, dim)
        candidates: Tensor | None = None,  # shape: (*batch, n_candidates), int64
    ) -> SparseDistribution:
        """Choose among options.

        Args:
            x: the queries.
            candidates: the options of each query, by index; -1 for none, so that queries can have different numbers. An
                option that is repeated counts once. By default all options.

        Returns:
            The distribution over ``OneOf(n_options)``, whose atoms are the indices of options.

        Raises:
            TypeError: if x is not a floating-point tensor, or the candidates are not an int64 tensor.
            ValueError: if shapes do not match, or, on the CPU, if a candidate is not an option.
            sparsum.NoDistribution: a ValueError; if a query has a NaN, or has no candidate. The message names the rows.
        """
        check_floating("x", x)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"x must have shape (*batch, {self.dim}), got {tuple(x.shape)}")
        scale = self.temperature * self.dim**0.5
        if candidates is None:
            if self.sparse:
                raise ValueError("candidates must be given to a Router with sparse=True")
            scores = torch.nn.functional.linear(x, self.weight.to(x.dtype)) / scale
            q = sparsemap(scores, OneOf(self.n_options), max_atoms=self.max_atoms)
        else:
            q = self._among(x / scale, self._checked(candidates, x))
        if self.training:
            with torch.no_grad():
                # Summed apart: added one by one, they would be lost beside a large count. The order of sums is that of atoms
                # on a GPU, too, where `index_add_` would take any.
                probs = q.probs.to(self.counts.dtype)
                self.counts += torch.zeros_like(self.counts).index_put_((q.atoms,), probs, accumulate=True)
                self.n_queries += x[..., 0].numel()
        return q

    @property
    def usage(self) -> Tensor:
        """The share of queries of each option since the last `reset_usage`, which sums to 1: (n_options,)."""
        return self.counts / self.n_queries.clamp_min(1)

    @property
    def perplexity(self) -> Tensor:
        """The exponential of the entropy of the usage, from 1 (all queries use one option) to n_options: ()."""
        entropy: Tensor = torch.special.entr(self.usage).sum()
        return entropy.exp()

    def reset_usage(self) -> None:
        """Forget the queries that were counted."""
        self.counts.zero_()
        self.n_queries.zero_()

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"dim={self.dim}, n_options={self.n_options}, max_atoms={self.max_atoms}, temperature={self.temperature}"

    def _among(
        self,
        x: Tensor,  # shape: (*batch, dim)
        candidates: Tensor,  # shape: (*batch, n_candidates)
    ) -> SparseDistribution:
        """The distribution over candidates, with options as atoms."""
        # A missing candidate repeats another one of its row, so that no other option gets a gradient.
        some = candidates.amax(-1, keepdim=True).clamp_min(0)
        filled = torch.where(candidates < 0, some, candidates)
        keys = torch.nn.functional.embedding(filled, self.weight, sparse=self.sparse)
        scores = (keys.to(x.dtype) @ x.unsqueeze(-1)).squeeze(-1)
        n = candidates.shape[-1]
        q = sparsemap(scores, OneOf(n), mask=_first_ones(candidates), max_atoms=self.max_atoms)
        options = filled.reshape(-1).index_select(0, q.row * n + q.atoms)  # padding has one, too
        return q.with_atoms(options, OneOf(self.n_options))

    def _checked(self, candidates: Tensor, x: Tensor) -> Tensor:
        if not isinstance(candidates, Tensor) or candidates.dtype != torch.int64:
            kind = candidates.dtype if isinstance(candidates, Tensor) else type(candidates).__name__
            raise TypeError(f"candidates must be a tensor of dtype torch.int64, got {kind}")
        if candidates.ndim != x.ndim or candidates.shape[:-1] != x.shape[:-1] or candidates.shape[-1] == 0:
            shape = ", ".join([*map(str, x.shape[:-1]), "n_candidates"])
            raise ValueError(f"candidates must have shape ({shape}), at least one each, got {tuple(candidates.shape)}")
        if can_look_at(candidates) and candidates.numel():
            least, most = int(candidates.amin()), int(candidates.amax())
            if least < -1 or most >= self.n_options:
                raise ValueError(f"candidates must be from -1 to {self.n_options - 1}, got {least if least < -1 else most}")
        return candidates


def _first_ones(
    candidates: Tensor,  # shape: (*batch, n_candidates)
) -> Tensor:
    """True for the first occurrence of each option, False for later ones and padding: (*batch, n_candidates)."""
    values, order = candidates.sort(dim=-1, stable=True)
    is_new = torch.nn.functional.pad(values[..., 1:] != values[..., :-1], (1, 0), value=True)
    return torch.empty_like(is_new).scatter_(-1, order, is_new & (values >= 0))
