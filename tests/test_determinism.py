"""The same seed gives the same bits: again, with deterministic algorithms, in two threads at once, and in forked workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import sparsum as sp
from sparsum.structures.scores import flatten
from tests.properties.estimators import ESTIMATORS, loss_of
from tests.properties.structures import STRUCTURES, case_of
from tests.simplex.test_devices import by_fork, every_device

every_structure = pytest.mark.parametrize("name", STRUCTURES)


def results(name: str, device: str = "cpu", seed: int = 0) -> list[Tensor]:
    """What the library computes of a structure: means, samples, log-probabilities, entropies, and gradients of these."""
    case = case_of(name)
    draw = torch.Generator().manual_seed(seed)
    flat = torch.randn(5, case.n_parts, generator=draw)
    flat[1:3] = flat[1:3].round()  # ties
    leaf = flat.to(device).requires_grad_()
    scores, generator = case.scores(leaf), torch.Generator(device).manual_seed(seed)
    q, few = sp.sparsemap(scores, case.structure), sp.topk_sparsemax(scores, case.structure, 3)
    found = [
        q.probs,
        q.atoms,
        flatten(q.mean),
        q.entropy(),
        few.probs,
        few.atoms,
        flatten(few.mean),
        q.sample((4,), generator=generator),
    ]
    if case.structure.has_partition:
        p = sp.Gibbs(scores, case.structure)
        found += [p.sample((4,), generator=generator), p.entropy(), flatten(p.mean), p.log_prob(p.mode)]
    weights = [torch.randn(each.shape, generator=draw).to(each) for each in found if each.requires_grad]
    total = torch.stack(
        [(each * weight).sum() for each, weight in zip([e for e in found if e.requires_grad], weights, strict=True)]
    ).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    return [each.detach() for each in found] + [gradient]


def estimates(name: str, structure: str, device: str = "cpu") -> list[Tensor]:
    """The surrogate of an estimator and the gradients of scores and of its parameters, over three steps."""
    case = case_of(structure)
    torch.manual_seed(0)
    estimator, generator = ESTIMATORS[name](case).to(device), torch.Generator(device).manual_seed(1)
    draw = torch.Generator().manual_seed(2)
    leaf = torch.randn(4, case.n_parts, generator=draw).to(device).requires_grad_()
    losses, context = (torch.randn(4, n, generator=draw) for n in (case.n_parts, 2))
    weight, found = losses.to(device), []

    def loss(z: Tensor, row: Tensor) -> Tensor:
        if device == "cpu":
            return loss_of(case, weight)(z, row)
        vectors = z if z.is_floating_point() else case.bound_structure.select(row).vectors(z).to(weight)
        return (vectors.flatten(1) * weight[row]).sum(-1)

    for _ in range(3):
        estimate = estimator(case.scores(leaf), case.structure, loss, context=context.to(device), generator=generator)
        gradients = torch.autograd.grad(
            estimate.surrogate.sum(), [leaf, *estimator.parameters()], allow_unused=True, materialize_grads=True
        )
        found += [estimate.value, *gradients]
    return found


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) and all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@every_device
@every_structure
@pytest.mark.usefixtures("_deterministic")
def test_structures_repeat_themselves(name: str, device: str) -> None:
    """With deterministic algorithms, which torch refuses where it has none, nothing is raised either."""
    assert same(results(name, device), results(name, device))


TAKEN = [
    (name, structure)
    for name in ESTIMATORS
    for structure in ("OneOf", "Bits", "Groups", "Sequence")
    if ESTIMATORS[name](case_of(structure)).needs.is_met(STRUCTURES[structure])
]


@every_device
@pytest.mark.parametrize(("name", "structure"), TAKEN)
@pytest.mark.usefixtures("_deterministic")
def test_estimators_repeat_themselves(name: str, structure: str, device: str) -> None:
    assert same(estimates(name, structure, device), estimates(name, structure, device))


MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": sp.sparsemax,
    "sparsemax, k": lambda x: sp.sparsemax(x, k=3),
    "entmax15": sp.entmax15,
    "entmax": lambda x: sp.entmax(x, 1.3),
    "entmax, rows": lambda x: sp.entmax(x, torch.linspace(1.1, 2.5, len(x), device=x.device)),
    "loss": lambda x: sp.sparsemax_loss(x, torch.arange(len(x), device=x.device), reduction="none"),
    "layer": lambda x: sp.sparsemap(x, sp.OneOf(x.shape[-1]), max_atoms=2).probs,
}


@every_device
@pytest.mark.parametrize("size", [5, 300, 9000])
@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.usefixtures("_deterministic")
def test_mappings_repeat_themselves(name: str, size: int, device: str) -> None:
    def compute() -> list[Tensor]:
        x = torch.randn(4, size, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        y = MAPPINGS[name](x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), x)]

    assert same(compute(), compute())


@every_device
@pytest.mark.usefixtures("_deterministic")
def test_layers_repeat_themselves(device: str) -> None:
    def compute() -> list[Tensor]:
        torch.manual_seed(0)
        codebook, router, norm = sp.nn.SparseCodebook(8, 4, 2), sp.nn.Router(4, 6), sp.nn.ScoreNorm(4)
        for module in (codebook, router, norm):
            module.to(device)
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        candidates = torch.randint(6, (5, 3), generator=torch.Generator().manual_seed(1)).to(device)
        out = codebook(norm(x), generator=torch.Generator(device).manual_seed(0))
        total = (
            out.vectors.square().sum() + out.distortion + router(x).entropy().sum() + router(x, candidates).entropy().sum()
        )
        parameters = [*codebook.parameters(), *router.parameters()]
        return [total.detach(), *torch.autograd.grad(total, [x, *parameters]), router.counts, *norm.buffers()]

    assert same(compute(), compute())


def test_two_threads_at_once() -> None:
    """Caches of tensors and graphs are shared by threads; results are those of one thread."""
    names = list(STRUCTURES)
    wanted = {name: results(name) for name in names}
    failures: list[str] = []
    start = threading.Barrier(2)

    def work(order: list[str]) -> None:
        try:
            start.wait()
            for _ in range(3):
                failures.extend(name for name in order if not same(results(name), wanted[name]))
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(order,)) for order in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_threads_fill_the_same_cache() -> None:
    """The first use of structures of sizes that nothing else has, in both threads."""
    start, found = threading.Barrier(2), [[], []]  # type: tuple[threading.Barrier, list[list[Tensor]]]

    def work(mine: list[Tensor]) -> None:
        for n in (13, 17, 19):
            weights = tuple(range(1, n))
            structures = [sp.Matching(3, n), sp.Knapsack(weights, n), sp.Subset(n, 6), sp.Segmentation(n, 3, 1)]
            start.wait()
            for structure in structures:
                scores = torch.randn(3, *structure.score_shape, generator=torch.Generator().manual_seed(n))
                mine.append(structure.topk(scores, 5))
                mine.append(sp.sparsemap(scores, structure).probs)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found[0]) == 24
    assert same(*found)


class Solved(Dataset[Tensor]):
    """Examples that are computed by the library."""

    def __len__(self) -> int:
        return len(STRUCTURES)

    def __getitem__(self, index: int) -> Tensor:
        return torch.cat([each.double().flatten() for each in results(list(STRUCTURES)[index])])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("way", [pytest.param("fork", marks=by_fork), "forkserver"])
def test_workers_of_a_data_loader(way: str) -> None:
    """Forked after the library was used here, or started anew: the same examples."""
    wanted = [Solved()[i] for i in range(len(STRUCTURES))]
    loader = DataLoader(Solved(), batch_size=None, num_workers=2, multiprocessing_context=way)
    assert same(list(loader), wanted)
