"""Every operation of the registry: its kernel gives what its twin gives. An operation without inputs here fails."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import sparsum as sp
from sparsum import kernels
from sparsum.kernels import Operation
from sparsum.segments import Segments
from sparsum.solvers import fused_splits
from sparsum.solvers.quadratic import Quadratic
from tests.kernels.serving import serving

pytest.importorskip("triton")
# Said by the interpreter, where rows are compared with infinities.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero|All-NaN slice):RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def registering_modules() -> list[str]:
    """The modules that register operations, by their source: a new one needs no entry here."""
    found = []
    for package in ("sparsum", "sparsum_experiments"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for file in sorted(root.rglob("*.py")):
            if "kernels.operation(" in file.read_text():
                found.append(".".join([package, *file.relative_to(root).with_suffix("").parts]))
    return found


for module in registering_modules():
    importlib.import_module(module)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


Inputs = Iterator[tuple[Any, ...]]


def rows_to_sum() -> Inputs:
    for lengths in ([3, 0, 1, 5], [0, 0], [200, 3, 0, 70]):
        segments = Segments.from_lengths(torch.tensor(lengths, device=DEVICE), sum(lengths))
        for rest, dtype in (((), torch.float32), ((3,), torch.float64), ((2, 65), torch.float32)):
            yield normal(sum(lengths), *rest, dtype=dtype), segments.row, segments.lengths


def odd_rows(n: int, dtype: torch.dtype) -> Tensor:
    """Random, tied, constant, with -inf, of -inf alone, with +inf and with NaN: (7, n)."""
    x = normal(7, n, seed=n, dtype=dtype)
    x[1], x[2] = (2 * x[1]).round() / 2, x[2, 0]
    x[3, ::2], x[4], x[5, 0], x[6, -1] = -torch.inf, -torch.inf, torch.inf, torch.nan
    return x


def rows_to_map() -> Inputs:
    for alpha in (2.0, 1.5):
        for dtype in (torch.float32, torch.float64):
            yield odd_rows(9, dtype), alpha, None
        yield normal(2, 3, 4, 5), alpha, normal(3, 1, 5).unsqueeze(0) < 0.8
        yield normal(2, 5000), alpha, None
        yield normal(6).expand(3, -1), alpha, None

    yield normal(2, 300), 4 / 3, None
    yield normal(2, 300), 5 / 3, None  # which has no whole exponent
    for alpha in (1.3, 2.5):
        for dtype in (torch.float32, torch.float64):
            yield odd_rows(9, dtype), alpha, None
    yield normal(7, 40, dtype=torch.float64), alphas_of(7), None
    yield normal(7, 40), alphas_of(7).float(), normal(1, 40) < 0.8


def alphas_of(n_rows: int) -> Tensor:
    return torch.linspace(1, 2.2, n_rows, dtype=torch.float64, device=DEVICE).unsqueeze(-1)


def products() -> Inputs:
    for x, alpha, mask in rows_to_map():
        yield kernels.OPERATIONS["entmax"].twin(x, alpha, mask), alpha, normal(*x.shape, seed=1, dtype=x.dtype)


def gradients() -> Inputs:
    for x, alpha, grad in products():
        if isinstance(alpha, Tensor):
            yield x, alpha, grad


def rows_to_pack() -> Inputs:
    for alpha in (2.0, 1.5):
        yield odd_rows(9, torch.float64), alpha, let_pass
        yield normal(3, 300), alpha, let_pass


def let_pass(_is_bad: Tensor) -> None:
    """Rows without support stay empty."""


def packed_gradients() -> Inputs:
    for alpha in (2.0, 1.5):
        x = normal(3, 40, dtype=torch.float64)
        packed, probs = kernels.OPERATIONS["packed_entmax"].twin(x, alpha, let_pass)
        yield normal(len(probs), dtype=torch.float64), probs, packed, x.shape[-1], alpha


def scores_of_best_bits() -> Inputs:
    yield normal(3, 40), 10
    yield normal(2, 1, dtype=torch.float64), 2


def matrices() -> Inputs:
    for n, m in ((1, 1), (4, 4), (3, 5), (10, 17)):
        yield normal(5, n, m, dtype=torch.float64), None
    scores, lengths = normal(6, 4, 6, seed=1, dtype=torch.float64), torch.tensor([4, 1, 3, 2, 4, 3], device=DEVICE)
    scores[0, 1, :5], scores[3, 0], scores[4, 0, 0], scores[5, 2, 0] = -torch.inf, -torch.inf, torch.nan, torch.inf
    yield scores, lengths
    yield scores, None
    yield normal(0, 2, 3, dtype=torch.float64), None


def means_of_matchings() -> Inputs:
    for structure in (sp.Matching(1), sp.Matching(5), sp.Matching(5, lengths=[1, 5, 3, 2])):
        n, _ = structure.score_shape
        scores = normal(4, n, n, seed=2, dtype=torch.float64)
        q = sp.sparsemap(scores, structure)
        yield q.mean, structure
    doubtful = normal(3, 4, 4, seed=3, dtype=torch.float64).abs()  # not the mean of any matchings
    doubtful[1, :2, 1:] = 0.0
    yield doubtful, sp.Matching(4)
    yield doubtful[:0], sp.Matching(4)


def chains() -> Inputs:
    for length, n in ((1, 3), (2, 1), (7, 5)):
        yield normal(4, length, n, dtype=torch.float64), normal(4, length - 1, n, n, dtype=torch.float64)
    unary, transition = normal(3, 5, 4, seed=1, dtype=torch.float64), normal(3, 4, 4, 4, seed=2, dtype=torch.float64)
    unary[0, 2, 1:], transition[1, 1, :, 2], transition[2, 3] = -torch.inf, -torch.inf, -torch.inf
    yield unary, transition
    yield unary.round(), transition.round()  # ties
    yield unary[:0], transition[:0]


def trees() -> Inputs:
    for n in (1, 2, 5, 9):
        for single_root in (False, True):
            yield normal(5, n, n, dtype=torch.float64), None, single_root
    scores, lengths = normal(6, 5, 5, seed=1, dtype=torch.float64), torch.tensor([5, 1, 3, 2, 4, 3], device=DEVICE)
    scores[0, 1, :4], scores[3, 0], scores[4, 2:] = -torch.inf, -torch.inf, -torch.inf
    for single_root in (False, True):
        yield scores, lengths, single_root
        yield scores, None, single_root
    yield normal(0, 3, 3, dtype=torch.float64), None, False


def scores_to_align() -> Inputs:
    for n, m in ((1, 1), (1, 4), (5, 5), (4, 11), (40, 90)):
        yield normal(3, n, m, dtype=torch.float64), torch.tensor([n, m], device=DEVICE).expand(3, 2)
    scores, sizes = normal(5, 4, 7, seed=1, dtype=torch.float64), torch.tensor([[4, 7], [1, 7], [3, 3], [1, 1], [2, 6]])
    scores[0, 1] = torch.nan
    yield scores, sizes.to(DEVICE)
    yield scores.round(), sizes.to(DEVICE)
    yield scores[:0], sizes[:0].to(DEVICE)


def scores_to_sum() -> Inputs:
    for n, most in ((2, 1), (5, 2), (6, 5), (40, 20)):
        for exactly in (True, False):
            scores = 2 * normal(5, n, seed=n, dtype=torch.float64)
            scores[0], scores[1], scores[2, 0], scores[3, ::2] = scores[0].round(), 1e30, torch.nan, -1e300
            yield scores, most, exactly
            yield scores.requires_grad_(), most, exactly
    yield normal(0, 3, dtype=torch.float64), 2, True


def scores_to_split() -> Inputs:
    structures = [(sp.Bits(7), False), (sp.Bits(7, symmetric=False), True), (sp.Budget(7, 3), True), (sp.Subset(7, 2), True)]
    for structure, is_systematic in structures:
        scores = normal(3, 7, dtype=torch.float64).requires_grad_()
        yield scores, structure.bind(scores), structure.bit_counts(), is_systematic


def split_gradients() -> Inputs:
    for kind, total in (((True, False, False), 0), ((False, True, False), 0), ((True, True, True), 3)):
        with torch.enable_grad():
            scores = normal(3, 7, dtype=torch.float64).requires_grad_()
            probs = fused_splits.Split.apply(scores, total, False, fused_splits.Kind(*kind), let_pass)[0]
        order = fused_splits.Order(*probs.grad_fn.saved_tensors)
        yield normal(len(probs), dtype=torch.float64), order, fused_splits.Kind(*kind)


def problems() -> Inputs:
    for structure in (sp.Bits(12), sp.Budget(9, 4), sp.Subset(6, 2)):
        scores = normal(2, structure.n, seed=3, dtype=torch.float64)
        linear, weight = structure.quadratic(scores)
        problem = Quadratic(structure, scores, linear, weight, torch.zeros_like(linear, dtype=torch.bool))
        yield scores, structure.bind(scores), problem, 1e-9, 200


def flows() -> Inputs:
    for shape, lengths in (((1, 3), [1, 1]), ((3, 3), [3, 3]), ((4, 2), [2, 4])):
        length, n = shape
        structure = sp.Sequence(length, n, lengths=torch.tensor(lengths, device=DEVICE))
        tags, transitions = normal(2, length, n, dtype=torch.float64), normal(2, length - 1, n, n, dtype=torch.float64)
        linear = structure.bind((tags, transitions)).flat
        linear = linear.masked_fill((linear > 1.5) & (normal(*linear.shape, seed=2) > 1), -torch.inf)
        weight = 1 + normal(linear.shape[1], seed=5, dtype=torch.float64).square()
        for i in range(length):  # padding has no parts
            linear[:, i * n : (i + 1) * n][structure.lengths <= i] = -torch.inf
        yield linear, weight, shape, structure.lengths


def problems_with_atoms() -> Inputs:
    for structure in (sp.Tree(4), sp.Matching(3, 4), sp.Groups(3, 2), sp.Tree(4, True, lengths=[3, 4])):
        scores = normal(2, *structure.score_shape, seed=3, dtype=torch.float64)
        scores[:, 0, 1] = -torch.inf
        linear, weight = structure.quadratic(structure.bind(scores).flat)
        is_forbidden, rows = linear == -torch.inf, structure.bind(scores)
        linear = linear.masked_fill(is_forbidden, 0.0)
        problem = Quadratic(rows.structure, scores, linear, weight, is_forbidden)
        yield linear, problem, rows.argmax(), 1e-12, 200


def images() -> Inputs:
    x = torch.randint(0, 30, (2, 48), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).to(DEVICE)
    for needs in ((False, False), (True, False), (False, True), (True, True)):
        yield normal(2, 48, 5), normal(30, 5), normal(30), x, *needs


def numbers() -> Inputs:
    for shape, n_hidden in (((3, 7), 5), ((200,), 16), ((0,), 4), ((1, 1), 1), ((2, 65), 100)):
        leaves = 3 * normal(*shape), normal(n_hidden, 1, seed=1), normal(1, n_hidden, seed=2)
        yield tuple(leaf.requires_grad_() for leaf in leaves)


def number_gradients() -> Inputs:
    for x, inner, outer in numbers():
        mapped = kernels.OPERATIONS["scalar_map"].twin(x, inner, outer)
        flat = inner.detach().flatten(), outer.detach().flatten()
        yield normal(*x.shape, seed=3), x.detach(), *flat, mapped.detach()


#: What the kernel of each operation is called with.
INPUTS: dict[str, Callable[[], Inputs]] = {
    "segment_sum": rows_to_sum,
    "entmax": rows_to_map,
    "entmax_jacobian": products,
    "entmax_gradients": gradients,
    "packed_entmax": rows_to_pack,
    "packed_entmax_backward": packed_gradients,
    "best_bits": scores_of_best_bits,
    "best_matching": matrices,
    "pull_matchings": means_of_matchings,
    "best_tree": trees,
    "best_path": chains,
    "best_alignment": scores_to_align,
    "log_sum_of_bits": scores_to_sum,
    "split_bits": scores_to_split,
    "split_bits_backward": split_gradients,
    "active_set_of_bits": problems,
    "active_set_steps": problems_with_atoms,
    "flow_mean": flows,
    "pixel_log_likelihood": images,
    "scalar_map": numbers,
    "scalar_map_backward": number_gradients,
}
#: The part of a result that has to be the same, where not all has: the kernel divides an image into several parts.
COMPARED: dict[str, Callable[[Any], Any]] = {
    "active_set_of_bits": lambda result: result[1],
    "flow_mean": lambda result: result[0],
    "pixel_log_likelihood": lambda result: (*result[:2], None if result[2] is None else result[2].sum(0)),
}


def tensors_in(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if dataclasses.is_dataclass(result):
        result = tuple(getattr(result, field.name) for field in dataclasses.fields(result))
    if isinstance(result, tuple):
        return [tensor for part in result for tensor in tensors_in(part)]
    return [] if result is None else [torch.tensor(result)]


def results(operation: Operation[Any, *tuple[Any, ...]], args: tuple[Any, ...], *, is_served: bool) -> list[Tensor]:
    """All that an operation returns and, where an argument has a gradient, gradients."""
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    with serving(is_served), torch.set_grad_enabled(bool(leaves)):
        assert operation.serves(*args) == is_served
        found = tensors_in(COMPARED.get(operation.name, lambda result: result)(operation(*args)))
        if leaves:
            total = torch.stack([(x * torch.ones_like(x).cumsum(0).cos()).sum() for x in found if x.requires_grad]).sum()
            found += torch.autograd.grad(total, leaves)
    return [tensor.detach() for tensor in found]


@pytest.mark.parametrize("name", sorted(kernels.OPERATIONS))
def test_the_kernel_gives_what_the_twin_gives(name: str) -> None:
    assert name in INPUTS, f"the operation {name!r} has no inputs to test its kernel with: add them to INPUTS"
    operation, n_compared = kernels.OPERATIONS[name], 0
    with torch.no_grad():
        inputs = list(INPUTS[name]())
    for args in inputs:
        mine, wanted = (results(operation, args, is_served=is_served) for is_served in (True, False))
        for here, there in zip(mine, wanted, strict=True):
            rounding = 1e-9 if there.dtype == torch.float64 else 1e-5 if there.dtype == torch.float32 else 0.0
            torch.testing.assert_close(here, there, rtol=rounding, atol=rounding, equal_nan=True)
            n_compared += there.numel()
    assert n_compared > 0


def test_all_inputs_belong_to_an_operation() -> None:
    assert INPUTS.keys() == kernels.OPERATIONS.keys()


def test_the_table_has_a_condition_for_every_operation() -> None:
    lines = kernels.table().splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(kernels.OPERATIONS)
    assert all(operation.takes.__doc__ for operation in kernels.OPERATIONS.values())


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match=r"name 'entmax' is already registered for sparsum\.simplex\.solve\.solve"):
        kernels.operation("entmax", kernel=lambda x: x, takes=lambda x: True)(lambda x: x)


class Subclass(Tensor):
    """A tensor that may want to see operators."""


def test_where_a_kernel_gives_way() -> None:
    """One that reads memory runs in eager code on plain tensors alone; an operator of torch runs everywhere."""
    eager = Operation("eager", twin=lambda x: -x, kernel=lambda x: 0 * x, takes=lambda x: len(x) > 1)
    traceable = dataclasses.replace(eager, is_traceable=True)
    x = torch.ones(3)
    assert torch.equal(eager(x), -x)  # not on a GPU
    with serving(True):
        assert not eager(x).any()
        assert not eager(torch.nn.Parameter(x)).any()
        assert torch.equal(eager(x[:1]), -x[:1])
        for view in (torch._neg_view(x), x.as_subclass(Subclass), torch._efficientzerotensor(3)):
            assert not eager.serves(view)
            assert traceable.serves(view)
        with FlopCounterMode(display=False):
            assert not eager.serves(x)
            assert traceable.serves(x)
        assert torch.equal(torch.func.vmap(eager)(x.expand(2, 3)), -x.expand(2, 3))
        assert torch.equal(torch.compile(eager, backend="eager", fullgraph=True)(x), -x)
        assert not torch.compile(traceable, backend="eager", fullgraph=True)(x).any()


def test_kernels_are_imported_where_they_run_and_can_be_switched_off() -> None:
    """Torch itself may import Triton; the library's kernels are not imported with the library."""
    code = """
import sys, sparsum
print(sparsum.kernels.IS_USABLE, sorted(name for name in sys.modules if name.startswith("sparsum.kernels.")))
"""
    command, environment = [sys.executable, "-c", code], os.environ | {"SPARSUM_KERNELS": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False ['sparsum.kernels.launch', 'sparsum.kernels.registry']\n"
