"""Vector quantization with sparse distributions over codes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsum.arguments import check_floating, check_generator, check_int, check_number
from sparsum.distribution import SparseDistribution
from sparsum.distribution.lookup import log_of
from sparsum.inference import check_max_atoms, sparsemap
from sparsum.simplex import embed
from sparsum.structures import Groups, OneOf
from sparsum.tensors import at_least_float32

# A revived code lies between two inputs, this close to one: two codes at the same place would never part.
_NEARNESS = 0.1


class Quantized(NamedTuple):
    """What a `SparseCodebook` returns. With one group, the dimension of groups is missing."""

    vectors: Tensor  # shape: (*batch, dim), in the dtype of the inputs
    indices: Tensor  # shape: (*batch, groups), int64, the nearest code of each group
    distortion: Tensor  # shape: (), the expected squared distance per coordinate, averaged over the batch
    q: SparseDistribution  # over OneOf(n_codes) or Groups(groups, n_codes)
    usage: Tensor  # shape: (groups, n_codes), the share of the batch of each code
    perplexity: Tensor  # shape: (groups,), the exponential of the entropy of the usage, from 1 to n_codes


class SparseCodebook(torch.nn.Module):
    r"""A layer that quantizes vectors: each is replaced by the mean of a few codes, those near to it.

    .. math:: q = \operatorname{sparsemap}\Bigl(-\frac{\lVert x - c_z \rVert^2}{\tau m}\Bigr), \qquad
        \hat x = \mathbb{E}_q[c_z], \qquad \text{distortion} = \mathbb{E}_q \frac{\lVert x - c_z \rVert^2}{m} .

    With several groups, x is split into parts of size m, each with its own table of codes (product quantization).
    Everything is differentiable, in x and in the codes; there is neither a straight-through gradient nor an exponential
    moving average. An input that is clearly nearest to one code has this code alone, and :math:`\hat x` then does not
    change with it. The distortion still does: add it to the loss, as the commitment loss of a VQ-VAE.

    >>> codebook = SparseCodebook(n_codes=16, dim=6, groups=2)
    >>> out = codebook(torch.randn(4, 5, 6))
    >>> out.vectors.shape, out.indices.shape, out.usage.shape
    (torch.Size([4, 5, 6]), torch.Size([4, 5, 2]), torch.Size([2, 16]))
    >>> loss = out.vectors.square().mean() + 0.25 * out.distortion
    >>> loss.backward()
    >>> codebook.lookup(out.indices).shape
    torch.Size([4, 5, 6])

    In training mode, codes that no input used for ``revive_after`` steps are drawn anew from the inputs, without a
    host-device synchronization. All codes are, at the first step, so that they start at the scale of the inputs; set
    ``age`` to 0 after assigning codes of your own. The state of an optimizer is not reset.

    Under autocast, distances are computed in float32. Under DistributedDataParallel all processes draw the same codes, from
    the inputs of the first; see ``sync``. With ``max_atoms``, `torch.compile` traces the module as a whole, except for a
    ``generator``.

    Args:
        n_codes: the number of codes of each group.
        dim: the size of the vectors, a multiple of ``groups``.
        groups: the number of groups.
        temperature: divides the squared distances, which are averaged over coordinates. The larger it is, the more codes.
        max_atoms: the largest number of atoms per input, as in `sparsum.sparsemap`; by default unlimited.
        hard_eval: whether in evaluation mode an input is replaced by the nearest code, and not by the mean.
        revive_after: the number of steps until an unused code is drawn anew; None for never.
        sync: whether all processes of `torch.distributed` train one codebook; by default if there are several processes.
            Costs two collective operations per step.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or ``dim`` is not a multiple of ``groups``.

    References:
        - Neural discrete representation learning (van den Oord, Vinyals & Kavukcuoglu, 2017),
          https://arxiv.org/abs/1711.00937
        - Product quantization for nearest neighbor search (Jegou, Douze & Schmid, 2011)
    """

    age: Tensor

    def __init__(
        self,
        n_codes: int,
        dim: int,
        groups: int = 1,
        *,
        temperature: float = 1.0,
        max_atoms: int | None = None,
        hard_eval: bool = False,
        revive_after: int | None = 100,
        sync: bool | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("n_codes", n_codes), ("dim", dim), ("groups", groups)):
            check_int(name, value, least=1)
        if dim % groups:
            raise ValueError(f"dim must be a multiple of groups, {groups}, got {dim}")
        self.dim, self.temperature = dim, check_number("temperature", temperature, above=0)
        self.max_atoms, self.hard_eval, self.sync = check_max_atoms(max_atoms), hard_eval, sync
        self.revive_after = None if revive_after is None else check_int("revive_after", revive_after, least=1)
        self.codes = torch.nn.Parameter(torch.randn(groups, n_codes, dim // groups))
        self.register_buffer("age", torch.full((groups, n_codes), revive_after or 0))

    def forward(
        self,
        x: Tensor,  # shape: (*batch, dim)
        *,
        generator: torch.Generator | None = None,
    ) -> Quantized:
        """Quantize vectors.

        Args:
            x: the vectors.
            generator: draws the codes that are revived.

        Raises:
            TypeError: if x is not a floating-point tensor.
            ValueError: if the last dimension is not ``dim``.
            sparsum.NoDistribution: a ValueError; if a vector has a NaN or is infinite. The message names the rows.
        """
        check_floating("x", x)
        check_generator(generator)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"x must have shape (*batch, {self.dim}), got {tuple(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            parts = at_least_float32(x.to(torch.promote_types(x.dtype, self.codes.dtype)))
            parts = parts.unflatten(-1, (len(self.codes), -1))
            is_revived = self.training and self.revive_after is not None
            if is_revived:
                self._revive(parts.detach(), generator)
            result = self._quantize(parts, x.dtype)
            if is_revived:
                self._grow_older(result.usage.detach() > 0)
        return result

    def lookup(
        self,
        indices: Tensor,  # shape: (*batch, groups), or (*batch,) for one group
    ) -> Tensor:
        """The vectors of given codes: (*batch, dim)."""
        indices = indices.unsqueeze(-1) if len(self.codes) == 1 else indices
        return embed(indices, self.codes).flatten(-2)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        n_groups, n_codes, _ = self.codes.shape
        return f"n_codes={n_codes}, dim={self.dim}, groups={n_groups}, temperature={self.temperature}"

    def _quantize(
        self,
        parts: Tensor,  # shape: (*batch, groups, size)
        dtype: torch.dtype,
    ) -> Quantized:
        # A copy, because the next step may revive codes before the gradient of this one is computed.
        codes = self.codes.to(parts.dtype, copy=True)
        n_groups, n_codes, size = codes.shape
        products = torch.einsum("...gs,gns->...gn", parts, codes)
        distances = (parts.square().sum(-1, keepdim=True) - 2 * products + codes.square().sum(-1)) / size
        structure = OneOf(n_codes) if n_groups == 1 else Groups(n_groups, n_codes)
        scores = (-distances / self.temperature).reshape(*parts.shape[:-2], *structure.score_shape)
        q = sparsemap(scores, structure, max_atoms=self.max_atoms)
        indices, weights = structure.argmax(scores), q.mean.reshape(distances.shape)
        if self.hard_eval and not self.training:
            weights = torch.nn.functional.one_hot(indices, n_codes).to(weights.dtype).reshape(distances.shape)
        distortion = (weights * distances).sum() / max(distances[..., 0].numel(), 1)
        usage = q.usage
        perplexity = (-usage * log_of(usage)).sum(-1).exp()
        vectors = embed(weights, codes).flatten(-2).to(dtype)
        return Quantized(vectors, indices, distortion, q, usage, perplexity)

    @torch.no_grad()
    def _revive(
        self,
        parts: Tensor,  # shape: (*batch, groups, size)
        generator: torch.Generator | None,
    ) -> None:
        """Draw codes that were not used for long from the inputs."""
        n_groups, n_codes, size = self.codes.shape
        parts = parts.reshape(-1, n_groups, size)
        drawn = self.codes.to(parts.dtype, copy=True)
        if len(parts):
            row = torch.randint(len(parts), (2, n_groups, n_codes), generator=generator, device=parts.device)
            near = _NEARNESS * torch.rand(n_groups, n_codes, 1, generator=generator, device=parts.device, dtype=parts.dtype)
            first, second = parts[row, torch.arange(n_groups, device=parts.device).unsqueeze(-1)]
            drawn = torch.lerp(first, second, near)
        if self._is_shared():
            torch.distributed.broadcast(drawn, 0)
        is_revived = (self.age >= (self.revive_after or 0)) & drawn.isfinite().all(-1)
        self.codes.copy_(torch.where(is_revived.unsqueeze(-1), drawn.to(self.codes.dtype), self.codes))
        self.age.masked_fill_(is_revived, 0)

    @torch.no_grad()
    def _grow_older(
        self,
        is_used: Tensor,  # shape: (groups, n_codes), or (n_codes,)
    ) -> None:
        """Count the steps since a code was used."""
        count = is_used.to(self.age.dtype).reshape(self.age.shape)
        if self._is_shared():
            torch.distributed.all_reduce(count)
        self.age.copy_(torch.where(count > 0, 0, self.age + 1))

    def _is_shared(self) -> bool:
        """Whether other processes train the same codebook."""
        if self.sync is not None:
            return self.sync
        is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        return is_initialized and torch.distributed.get_world_size() > 1
