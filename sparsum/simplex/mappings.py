"""Mappings from scores to sparse probabilities: drop-in replacements for `torch.softmax`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.simplex import autograd, dispatch
from sparsum.simplex.arguments import (
    apply_mask,
    can_look_at,
    check_dim,
    check_mask,
    check_scores,
    compute_dtype,
    divide_by_temperature,
    round_to,
    rows_of_alpha,
)
from sparsum.simplex.solve import solve


def sparsemax(
    x: Tensor,
    dim: int = -1,
    *,
    k: int | None = None,
    mask: Tensor | None = None,
    temperature: float | Tensor | None = None,
) -> Tensor:
    r"""Euclidean projection of scores onto the probability simplex.

    .. math:: \operatorname{sparsemax}(x) = \arg\min_{p \in \triangle} \lVert p - x \rVert^2 = \max(x - \tau, 0)

    With ``k``, at most k entries are non-zero: the result is the projection onto the distributions with at most k non-zero
    entries, which is the sparsemax of the k largest scores. If fewer than k entries are non-zero, it equals the sparsemax of
    all scores. Ties at the k-th largest score are broken by `torch.topk`.

    >>> sparsemax(torch.tensor([1.0, 0.8, -0.5]))
    tensor([0.6000, 0.4000, 0.0000])
    >>> sparsemax(torch.tensor([1.0, 0.8, -0.5]), k=1)
    tensor([1., 0., 0.])
    >>> sparsemax(torch.tensor([1.0, 0.8, -0.5]), temperature=4.0)
    tensor([0.4750, 0.4250, 0.1000])

    Args:
        x: scores, of any shape. Entries of -inf get probability 0; a row of only -inf returns zeros and has zero gradient.
            Entries of +inf share the mass of their row. A NaN makes its entire row NaN.
        dim: the dimension along which the probabilities sum to 1.
        k: the maximum number of non-zero entries; from the size of ``x`` in ``dim`` on, it changes nothing. In the `entmax`
            package, ``k`` is a hint that never changes the result: omit it when coming from there.
        mask: True where an entry is allowed, broadcastable to the shape of ``x``; all other entries get probability 0. This
            is the opposite of ``key_padding_mask``. A large negative score does not replace a mask: a row of only large
            negative scores maps to a uniform distribution. A fully masked row returns zeros.
        temperature: map ``x / temperature``. A positive number, or a tensor of positive numbers, which receives a gradient.
            A tensor must broadcast to the rows, i.e. to the shape of ``x`` without ``dim``, or have all dimensions of ``x``
            and size 1 in ``dim``. The values of a tensor are only checked on the CPU: on a GPU the check would need a
            host-device synchronization.

    Returns:
        Probabilities with the shape and dtype of ``x``, computed in at least float32.

    Raises:
        TypeError: if ``x`` or ``temperature`` is not a dense tensor of floating-point numbers of 16 bits or more, ``mask``
            is not a boolean tensor, or ``k`` is not an int.
        ValueError: if ``dim`` is out of range, if ``k`` is less than 1, if ``mask`` or ``temperature`` does not broadcast to
            ``x``, or if ``temperature`` is not positive and finite.

    References:
        - From softmax to sparsemax (Martins & Astudillo, 2016), Algorithm 1, https://arxiv.org/abs/1602.02068
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3.1 for ``k``, https://arxiv.org/abs/2007.01919
    """
    if temperature is not None:
        return _map_divided(lambda scores: sparsemax(scores, dim, k=k, mask=mask), x, dim, temperature)
    if k is None:
        return _map(x, 2.0, dim, mask)
    check_int("k", k, least=1)
    check_scores(x)
    dim = check_dim(x, dim)
    if k >= x.shape[dim]:
        return _map(x, 2.0, dim, mask)
    best = (x if mask is None else apply_mask(x, mask)).topk(k, dim=dim)
    probs = _map(best.values, 2.0, dim, None)
    rest = (0 * probs.detach().narrow(dim, 0, 1)).expand_as(x)  # NaN if the row contains a NaN, which topk puts first
    return rest.scatter(dim, best.indices, probs)


def entmax15(x: Tensor, dim: int = -1, *, mask: Tensor | None = None, temperature: float | Tensor | None = None) -> Tensor:
    r"""1.5-entmax: sparse like sparsemax, but with a continuous derivative.

    .. math:: \operatorname{entmax}_{1.5}(x) = \arg\max_{p \in \triangle} p^\top x + \tfrac43 \sum_i (p_i - p_i^{3/2})
              = \max(x / 2 - \tau, 0)^2

    >>> entmax15(torch.tensor([1.0, 0.8, -2.0]))
    tensor([0.5705, 0.4295, 0.0000])

    Args:
        x: scores, of any shape; infinities and NaN as for `sparsemax`.
        dim: the dimension along which the probabilities sum to 1.
        mask: True where an entry is allowed, broadcastable to the shape of ``x``; all other entries get probability 0.
        temperature: map ``x / temperature``, as for `sparsemax`.

    Returns:
        Probabilities with the shape and dtype of ``x``, computed in at least float32.

    Raises:
        TypeError: as for `sparsemax`.
        ValueError: if ``dim`` is out of range, if ``mask`` or ``temperature`` does not broadcast to ``x``, or if
            ``temperature`` is not positive and finite.

    References:
        - Sparse sequence-to-sequence models (Peters, Niculae & Martins, 2019), equation 10, https://arxiv.org/abs/1905.05702
    """
    if temperature is not None:
        return _map_divided(lambda scores: entmax15(scores, dim, mask=mask), x, dim, temperature)
    return _map(x, 1.5, dim, mask)


def entmax(
    x: Tensor,
    alpha: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    temperature: float | Tensor | None = None,
) -> Tensor:
    r"""Alpha-entmax, for any :math:`\alpha \ge 1`: includes softmax (1), 1.5-entmax (1.5) and sparsemax (2).

    .. math:: \operatorname{entmax}_\alpha(x) = \arg\max_{p \in \triangle} p^\top x
              + \frac{1}{\alpha (\alpha - 1)} \sum_i (p_i - p_i^\alpha) = [(\alpha - 1) x - \tau]_+^{1 / (\alpha - 1)}

    A tensor ``alpha`` receives a gradient, also at alpha = 1, so the sparsity of each row can be learned. For attention
    scores of shape (batch, heads, queries, keys), pass one alpha per head as (heads, 1) or (1, heads, 1, 1), and keep it
    above 1, as the module `Entmax` does with ``bounds``.

    >>> x = torch.tensor([[1.0, 0.8, 0.0], [1.0, 0.8, 0.0]])
    >>> entmax(x, torch.tensor([1.25, 2.0]))
    tensor([[0.4939, 0.3862, 0.1198],
            [0.6000, 0.4000, 0.0000]])

    Args:
        x: scores, of any shape; infinities and NaN as for `sparsemax`.
        alpha: a number of at least 1, or a tensor of numbers of at least 1. A tensor must broadcast to the rows, i.e. to the
            shape of ``x`` without ``dim``, or have all dimensions of ``x`` and size 1 in ``dim``. In the `entmax`
            package, alpha broadcasts to ``x`` itself: a tensor with fewer dimensions than ``x``, such as (heads, 1, 1),
            needs all of them here. On a GPU and under `torch.compile`, tensor values below 1 make their rows NaN instead of
            raising: checking them would need a host-device synchronization.
        dim: the dimension along which the probabilities sum to 1.
        mask: True where an entry is allowed, broadcastable to the shape of ``x``; all other entries get probability 0.
        temperature: map ``x / temperature``, as for `sparsemax`.

    Returns:
        Probabilities with the shape and dtype of ``x``, computed in at least float32, and on the CPU in float64 if alpha
            exceeds 2.

    Raises:
        TypeError: if ``x``, ``alpha`` or ``temperature`` does not have a floating-point dtype, or ``mask`` is not a boolean
            tensor.
        ValueError: if ``alpha`` is below 1, if ``temperature`` is not positive and finite, if ``dim`` is out of range, or if
            ``alpha``, ``mask`` or ``temperature`` does not broadcast to ``x``.

    References:
        - Sparse sequence-to-sequence models (Peters, Niculae & Martins, 2019), https://arxiv.org/abs/1905.05702
        - Adaptively sparse transformers (Correia, Niculae & Martins, 2019), https://arxiv.org/abs/1909.00015
    """
    if temperature is not None:
        return _map_divided(lambda scores: entmax(scores, alpha, dim, mask=mask), x, dim, temperature)
    return _map(x, alpha, dim, mask)


def _map_divided(mapping: Callable[[Tensor], Tensor], x: Tensor, dim: int, temperature: float | Tensor) -> Tensor:
    """Map the scores divided by a temperature; round to the dtype of the scores only at the end."""
    probs = mapping(divide_by_temperature(x, temperature, dim))
    return probs if probs.dtype == x.dtype else round_to(probs.movedim(dim, -1), x.dtype).movedim(-1, dim)


def _map(x: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None) -> Tensor:
    known = _map_again(x, alpha, dim) if mask is None else None
    return _map_anew(x, alpha, dim, mask) if known is None else known


def _map_again(x: Tensor, alpha: float | Tensor, dim: int) -> Tensor | None:
    """Fast path without checks: the last dimension, a known shape. Returns None if it does not apply."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or type(dim) is not int or dim != -1 or not x.is_cuda:
        return None
    if type(alpha) is not float or x.layout is not torch.strided or x.is_nested:
        return None
    return autograd.apply_again(x, alpha)


def _map_anew(x: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None) -> Tensor:
    check_scores(x)
    dim = check_dim(x, dim)
    alpha = rows_of_alpha(alpha, x, dim)
    if x.shape[dim] == 0:
        return x.clone()
    is_last = dim == x.ndim - 1
    if solve.serves(x, alpha, mask):
        return _map_by_kernels(x, alpha, dim, mask)
    scores = x if mask is None else apply_mask(x, mask)
    scores = scores if is_last else scores.movedim(dim, -1)
    dtype = compute_dtype(x) if _is_moderate(alpha) else torch.float64
    alpha = alpha.to(dtype) if isinstance(alpha, Tensor) else alpha
    probs = autograd.apply(scores if scores.dtype == dtype else scores.to(dtype), alpha)
    probs = probs if probs.dtype == x.dtype else round_to(probs, x.dtype)
    return probs if is_last else probs.movedim(-1, dim)


def _is_moderate(alpha: float | Tensor) -> bool:
    """Whether derivatives in float32 are accurate, as far as is known without synchronization.

    Near the boundary of the support, an alpha above 2 amplifies rounding errors in the probabilities to large errors in
    their derivatives, and at alpha = 1 the sum of a long row of torch.softmax in float32 deviates from 1 by more than
    torch.distributions accepts.
    """
    if isinstance(alpha, Tensor):
        return can_look_at(alpha) and not bool((alpha > 2).any())
    return 1 < alpha <= 2


def _map_by_kernels(x: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Map with kernels, which read any strides, apply the mask while loading, and round to the dtype of ``x``."""
    if isinstance(alpha, Tensor):
        alpha = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
    if mask is not None:
        check_mask(x, mask)
        mask = mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape)
    if dim == x.ndim - 1:
        return autograd.apply(x, alpha, mask)
    rows = dispatch.rows_along(x, dim, x.shape)
    alpha = alpha.reshape(*rows.shape[:-1], 1) if isinstance(alpha, Tensor) else alpha
    probs = autograd.apply(rows, alpha, None if mask is None else dispatch.rows_along(mask, dim, x.shape))
    return probs.transpose(1, 2).reshape(x.shape)
