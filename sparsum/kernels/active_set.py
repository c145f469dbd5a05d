"""The active set method for bits in one launch: one program per row takes all steps, in float64.

Steps, tolerances and tie-breaking are those of `sparsum.solvers.active_rows`, for vectors of bits with equal weights. The
kernel stops early on a row with nearly dependent atoms or an inverse that has lost precision. It flags the row, and the loop
in `sparsum.solvers.active_rows` continues from its atoms.

The inverse and the atoms of a row are in global memory, and usually in the caches. So are the *lines*, through which threads
exchange vectors. A barrier precedes every write to data that others may still read and every read of data that others wrote.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.launch import next_power_of_2, wrap_triton

# The maximum memory for the inverses of one launch.
MOST_BYTES = 1 << 28
# The number of entries of a matrix that a program holds at a time.
TILE = 2048

# Constants of the same names as in `sparsum.solvers.active_rows`.
_GRID = tl.constexpr(2.0**-36)
_SAME = tl.constexpr(1e-13)
CORRECT_EVERY = tl.constexpr(4)
_LOST = tl.constexpr(1e-6)
_NEARLY_DEPENDENT = tl.constexpr(1e-6)
_DEPENDENT = tl.constexpr(1e-13)
_NO_DISTANCE = tl.constexpr(1e-22)
_ZERO = tl.constexpr(1e-14)


@triton.jit
def snap(x):
    """Round to the grid, halves to even: adding a large number removes the fractional digits."""
    scaled, large = x / _GRID, 1.5 * 2.0**52
    return tl.where(tl.abs(scaled) < 2.0**51, ((scaled + large) - large) * _GRID, x)


@triton.jit
def _n_used(is_active, SLOTS: tl.constexpr):
    """The number of slots up to the last active slot; when that slot was filled, all slots before it were filled."""
    return tl.max(tl.where(is_active > 0, tl.arange(0, SLOTS) + 1, 0), 0)


@triton.jit
def _best(
    values, line, most, IS_LIMITED: tl.constexpr, IS_EXACT: tl.constexpr, PARTS: tl.constexpr, TALL: tl.constexpr
):  # fmt: skip
    """The best bits: the positive bits, at most ``most`` of them, or exactly ``most``; the first bits win ties."""
    parts, chosen = tl.arange(0, PARTS), values > 0
    if IS_LIMITED:  # noqa: SIM102 (one is known to the compiler)
        if IS_EXACT or tl.sum(chosen.to(tl.int32), 0) > most:
            tl.store(line + parts, values)
            tl.debug_barrier()
            n_before = tl.zeros([TALL, PARTS], tl.int32)
            for first in range(0, PARTS, TALL):
                others = first + tl.arange(0, TALL)
                # A tile may be taller than the line.
                other = tl.load(line + others, mask=others < PARTS, other=-float("inf"))[:, None]
                is_first = (other == values[None, :]) & (others[:, None] < parts[None, :])
                n_before += ((other > values[None, :]) | is_first).to(tl.int32)
            is_among = tl.sum(n_before, 0) < most
            chosen = is_among if IS_EXACT else chosen & is_among
    return chosen.to(tl.float64)


@triton.jit
def _dot(atoms, origin, x, shift, line, n, n_used, PARTS: tl.constexpr, TALL: tl.constexpr):
    """Write the products of all vectors with x, minus a shift, to a line."""
    parts = tl.arange(0, PARTS)
    first = 0
    while first < n_used:
        slots = first + tl.arange(0, TALL)
        mask = (slots < n_used)[:, None] & (parts < n)[None, :]
        atom = tl.load(atoms + slots[:, None] * n + parts[None, :], mask=mask, other=0)
        product = tl.sum((atom.to(tl.float64) - origin[None, :]) * x[None, :], 1)
        tl.store(line + slots, product - shift, mask=slots < n_used)
        first += TALL
    tl.debug_barrier()


@triton.jit
def _mix(atoms, origin, factors, line, n, n_used, PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL: tl.constexpr):
    """The sum of all vectors times their factors, which are also written to a line."""
    tl.store(line + tl.arange(0, SLOTS), factors)
    tl.debug_barrier()
    parts, total = tl.arange(0, PARTS), tl.zeros([TALL, PARTS], tl.float64)
    first = 0
    while first < n_used:
        slots = first + tl.arange(0, TALL)
        mask = (slots < n_used)[:, None] & (parts < n)[None, :]
        atom = tl.load(atoms + slots[:, None] * n + parts[None, :], mask=mask, other=0)
        factor = tl.load(line + slots, mask=slots < n_used, other=0.0)
        total += (atom.to(tl.float64) - origin[None, :]) * factor[:, None]
        first += TALL
    return tl.sum(total, 0)


@triton.jit
def _times(inverse, line, n_used, SLOTS: tl.constexpr, TALL: tl.constexpr):
    """The (symmetric) inverse times a line."""
    columns, total = tl.arange(0, SLOTS), tl.zeros([TALL, SLOTS], tl.float64)
    first = 0
    while first < n_used:
        slots = first + tl.arange(0, TALL)
        mask = (slots < n_used)[:, None] & (columns < n_used)[None, :]
        entry = tl.load(inverse + slots[:, None] * SLOTS + columns[None, :], mask=mask, other=0.0)
        total += entry * tl.load(line + slots, mask=slots < n_used, other=0.0)[:, None]
        first += TALL
    return tl.sum(total, 0)


@triton.jit
def _update(
    inverse, direction, line, scale, slot, n_used, IS_NEW: tl.constexpr, SLOTS: tl.constexpr, TALL: tl.constexpr
):  # fmt: skip
    """Add a multiple of v v' to the inverse, where a line also holds v.

    The row and column of a slot are taken as 0 before the update if IS_NEW, and set to 0 after it otherwise.
    """
    columns = tl.arange(0, SLOTS)
    first = 0
    while first < n_used:
        slots = first + tl.arange(0, TALL)
        mask = (slots < n_used)[:, None] & (columns < n_used)[None, :]
        is_other = (slots != slot)[:, None] & (columns != slot)[None, :]
        place = inverse + slots[:, None] * SLOTS + columns[None, :]
        change = tl.load(line + slots, mask=slots < n_used, other=0.0)[:, None] * direction[None, :] * scale
        entry = tl.load(place, mask=mask & is_other, other=0.0)
        tl.store(place, entry + change if IS_NEW else tl.where(is_other, entry + change, 0.0), mask=mask)
        first += TALL
    tl.debug_barrier()


@triton.jit
def correct(
    atoms, inverse, lines, linear, origin, target, mean, is_active, n, weight,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_PARTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Correct the target by K A'r, which is 0 up to rounding; return target, mean, and whether precision is lost."""
    residual, n_used = linear - weight * mean, _n_used(is_active, SLOTS)
    _dot(atoms, origin, residual, tl.sum(residual * (mean - origin), 0), lines, n, n_used, PARTS, TALL_PARTS)
    correction = _times(inverse, lines, n_used, SLOTS, TALL_SLOTS)
    target += correction
    target = target / tl.sum(target, 0)
    mean = origin + _mix(atoms, origin, target, lines + SLOTS, n, n_used, PARTS, SLOTS, TALL_PARTS)
    return target, mean, tl.where(tl.max(tl.abs(correction), 0) <= _LOST, 0, 1)


@triton.jit
def improves(atom, linear, mean, tolerance, weight):
    """Whether an atom improves the objective."""
    difference = atom - mean
    known = tl.where(tl.abs(difference) < _SAME, 0.0, linear - weight * mean)
    resolution = 4e-15 * tl.sum(tl.abs(known), 0) + tl.sum(tl.abs(difference), 0) * _GRID
    return tl.sum(difference * known, 0) > tl.maximum(resolution, tolerance) / 2


@triton.jit
def _ask(
    lines, linear, is_allowed, mean, tolerance, most, weight, IS_LIMITED: tl.constexpr,
    IS_EXACT: tl.constexpr, PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_PARTS: tl.constexpr,
):  # fmt: skip
    """Find the atom of the most violated constraint, and whether it is violated."""
    values = tl.where(is_allowed, snap(linear - weight * mean), -float("inf"))
    atom = _best(values, lines + 2 * SLOTS, most, IS_LIMITED, IS_EXACT, PARTS, TALL_PARTS)
    return atom, improves(atom, linear, mean, tolerance, weight)


@triton.jit
def _add(
    atoms, inverse, lines, linear, origin, target, mean, atom, slot, is_active, n, weight,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_PARTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Add an atom in a free slot unless it depends on the others; return target, mean, slots, and whether it was added."""
    slots, parts = tl.arange(0, SLOTS), tl.arange(0, PARTS)
    tl.debug_barrier()
    tl.store(atoms + slot * n + parts, atom.to(tl.int8), mask=parts < n)
    residual, difference = linear - weight * mean, atom - mean
    weighted = weight * difference
    n_used = _n_used(is_active, SLOTS)
    _dot(atoms, origin, weighted, tl.sum(weighted * (mean - origin), 0), lines, n, n_used, PARTS, TALL_PARTS)
    direction = tl.where(slots == slot, -1.0, target + _times(inverse, lines, n_used, SLOTS, TALL_SLOTS))
    is_active = tl.where(slots == slot, 1, is_active)
    n_used = _n_used(is_active, SLOTS)
    moved = _mix(atoms, origin, direction, lines + SLOTS, n, n_used, PARTS, SLOTS, TALL_PARTS)
    distance = tl.sum(weight * moved * moved, 0)
    is_in = distance > tl.sum(difference * weighted, 0) * _DEPENDENT + _NO_DISTANCE
    if is_in:
        length = -tl.sum(residual * moved, 0) / distance
        target -= length * direction
        mean -= length * moved
        _update(inverse, direction, lines + SLOTS, 1 / distance, slot, n_used, True, SLOTS, TALL_SLOTS)
    return target, mean, is_active, is_in


@triton.jit
def _drop(
    atoms, inverse, lines, origin, target, slot, n, n_used, weight,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Drop the atom in a slot; return the target of the others, and whether the inverse has lost precision."""
    slots, parts = tl.arange(0, SLOTS), tl.arange(0, PARTS)
    direction = tl.load(inverse + slot * SLOTS + slots, mask=slots < n_used, other=0.0)
    pivot = tl.sum(tl.where(slots == slot, direction, 0.0), 0)
    length = tl.sum(tl.where(slots == slot, target, 0.0), 0) / pivot
    target = tl.where(slots == slot, 0.0, target - length * direction)
    tl.store(lines + SLOTS + slots, direction)
    tl.debug_barrier()
    _update(inverse, direction, lines + SLOTS, -1 / pivot, slot, n_used, False, SLOTS, TALL_SLOTS)
    vector = tl.load(atoms + slot * n + parts, mask=parts < n, other=0).to(tl.float64) - origin
    is_sound = (pivot > 0) & (pivot * tl.sum(weight * vector * vector, 0) <= 1 / _NEARLY_DEPENDENT)
    return target, tl.where(is_sound, 0, 1)


@triton.jit
def _settle(
    atoms, inverse, lines, origin, target, probs, is_active, n, n_used, weight,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Move to the target and drop atoms whose probability reaches 0 on the way.

    The last two values returned are the number of dropped atoms and whether the inverse has lost precision.
    """
    slots = tl.arange(0, SLOTS)
    n_dropped, is_spoilt = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    is_cut = tl.min(target, 0) < -_ZERO
    while is_cut:
        is_falling = target < -_ZERO
        length = tl.where(is_falling, probs / tl.where(is_falling, probs - target, 1.0), float("inf"))
        least = tl.min(length, 0)
        leaving = tl.min(tl.where(length <= least * (1 + 1e-10) + _ZERO, slots, SLOTS - 1), 0)
        probs = tl.where(slots == leaving, 0.0, tl.maximum(probs + least * (target - probs), 0.0))
        is_active = tl.where(slots == leaving, 0, is_active)
        target, is_spoilt = _drop(
            atoms, inverse, lines, origin, target, leaving, n, n_used, weight, PARTS, SLOTS, TALL_SLOTS
        )
        n_dropped += 1
        is_cut = (is_spoilt == 0) & (tl.min(target, 0) < -_ZERO) & (n_dropped < SLOTS)
    probs = tl.where(is_spoilt > 0, probs, tl.maximum(target, 0.0))
    return target, probs, is_active, n_dropped, is_spoilt


@triton.jit
def advance(
    atoms, inverse, lines, linear, origin, target, mean, probs, atom, slot, is_active, n, weight,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_PARTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Add an atom in a free slot, and settle.

    The last two values returned are the number of atoms added and dropped, and whether the loop has to continue, because the
    atom depends on the others or the inverse has lost precision.
    """
    n_steps = tl.full([], 0, tl.int32)
    is_stopped = n_steps + 1
    target, mean, is_filled, is_in = _add(
        atoms, inverse, lines, linear, origin, target, mean, atom, slot, is_active, n,
        weight, PARTS, SLOTS, TALL_PARTS, TALL_SLOTS,
    )  # fmt: skip
    if is_in:
        n_used = _n_used(is_filled, SLOTS)
        target, probs, is_active, n_dropped, is_stopped = _settle(
            atoms, inverse, lines, origin, target, probs, is_filled, n, n_used, weight, PARTS, SLOTS, TALL_SLOTS
        )
        n_steps = 1 + n_dropped
        if n_dropped > 0:
            mean = origin + _mix(atoms, origin, target, lines + SLOTS, n, n_used, PARTS, SLOTS, TALL_PARTS)
    return target, mean, probs, is_active, n_steps, is_stopped


@triton.jit
def _find(
    linear_ptr, best_ptr, tolerance_ptr, atoms_ptr, probs_ptr, steps_ptr, stopped_ptr, inverse_ptr, lines_ptr,
    first_row, n, most, max_steps, WEIGHT: tl.constexpr, IS_LIMITED: tl.constexpr, IS_EXACT: tl.constexpr,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, TALL_PARTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Take all steps of one row."""
    program = tl.program_id(0).to(tl.int64)
    row = first_row + program
    atoms, inverse = atoms_ptr + row * SLOTS * n, inverse_ptr + program * SLOTS * SLOTS
    lines = lines_ptr + program * (2 * SLOTS + PARTS)
    slots, parts = tl.arange(0, SLOTS), tl.arange(0, PARTS)
    tolerance = tl.load(tolerance_ptr)
    linear = tl.load(linear_ptr + row * n + parts, mask=parts < n, other=-float("inf"))
    is_allowed = linear != -float("inf")
    linear = tl.where(is_allowed, linear, 0.0)
    # Start with only the best atom, in the first slot.
    origin = tl.load(best_ptr + row * n + parts, mask=parts < n, other=0).to(tl.float64)
    tl.store(atoms + parts, origin.to(tl.int8), mask=parts < n)
    tl.store(inverse + slots, tl.zeros([SLOTS], tl.float64), mask=slots < 1)
    tl.debug_barrier()
    mean, target = origin, tl.where(slots < 1, 1.0, tl.zeros([SLOTS], tl.float64))
    probs, is_active = target, (slots < 1).to(tl.int32)
    zero = tl.full([], 0, tl.int32)
    n_asked, steps, is_stopped, is_running = zero, zero, zero, zero + 1
    while is_running > 0:
        n_asked += 1
        if n_asked % CORRECT_EVERY == 0:
            target, mean, is_stopped = correct(
                atoms, inverse, lines, linear, origin, target, mean, is_active, n,
                WEIGHT, PARTS, SLOTS, TALL_PARTS, TALL_SLOTS,
            )  # fmt: skip
        atom, is_violated = _ask(
            lines, linear, is_allowed, mean, tolerance, most, WEIGHT, IS_LIMITED, IS_EXACT, PARTS, SLOTS, TALL_PARTS
        )
        slot = tl.min(tl.where(is_active > 0, SLOTS, slots), 0)
        is_violated = is_violated & (steps < max_steps)
        is_stopped = tl.where(is_violated & (slot >= SLOTS), 1, is_stopped)
        is_running = tl.where(is_violated & (is_stopped == 0), 1, 0)
        if is_running > 0:
            target, mean, probs, is_active, n_steps, is_stopped = advance(
                atoms, inverse, lines, linear, origin, target, mean, probs, atom, slot, is_active, n,
                WEIGHT, PARTS, SLOTS, TALL_PARTS, TALL_SLOTS,
            )  # fmt: skip
            steps += n_steps
            is_running = tl.where(is_stopped > 0, 0, 1)
    tl.store(probs_ptr + row * SLOTS + slots, tl.where(is_active > 0, probs, 0.0))
    tl.store(steps_ptr + row, steps)
    tl.store(stopped_ptr + row, is_stopped)


def n_slots(n: int) -> int:
    """The maximum number of atoms for a row of n bits: more than observed in practice, but not always n + 1."""
    return min(next_power_of_2(n + 2), 128 if n <= 128 else 256)


@triton_op("sparsum::active_set_of_bits", mutates_args=())
def active_set_of_bits(
    linear: Tensor,  # shape: (n_rows, n), float64, -inf for forbidden bits
    best: Tensor,  # shape: (n_rows, n), int8, the atoms to start from
    most: int,
    is_exact: bool,
    weight: float,
    tolerance: float,
    max_steps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the active set method over the bit vectors with at most (or, if ``is_exact``, exactly) ``most`` ones.

    Returns:
        Atoms, (n_rows, n_slots, n) in int8, where those with probability 0 are undefined; probabilities, (n_rows, n_slots);
        the number of steps of each row, (n_rows,); and, in int32, whether the row stopped early, (n_rows,).
    """
    linear, best = linear.contiguous(), best.contiguous()
    n_rows, n = linear.shape
    width, parts = n_slots(n), max(16, next_power_of_2(n))
    atoms = torch.empty(n_rows, width, n, dtype=torch.int8, device=linear.device)
    probs = linear.new_empty(n_rows, width)
    steps = torch.empty(n_rows, dtype=torch.int64, device=linear.device)
    is_stopped = torch.empty(n_rows, dtype=torch.int32, device=linear.device)
    n_together = max(1, min(n_rows, MOST_BYTES // (8 * width**2)))
    inverse, lines = linear.new_empty(n_together, width, width), linear.new_empty(n_together, 2 * width + parts)
    limit = linear.new_full((1,), tolerance)  # Triton would pass a Python float as float32
    for first in range(0, n_rows, n_together):
        wrap_triton(_find)[(min(n_together, n_rows - first),)](
            *(linear, best, limit, atoms, probs, steps, is_stopped, inverse, lines, first, n, most, max_steps),
            WEIGHT=weight,
            IS_LIMITED=is_exact or most < n,
            IS_EXACT=is_exact,
            PARTS=parts,
            SLOTS=width,
            TALL_PARTS=min(TILE // parts, width),
            TALL_SLOTS=min(TILE // width, width),
            num_warps=4 if max(parts, width) < 64 else 8,
            num_stages=1,
        )
    return atoms, probs, steps, is_stopped
