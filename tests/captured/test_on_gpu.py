"""On a GPU, captured steps do what eager steps do."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsum as sp
from tests.captured.training import BATCH, CASES, EAGER, N_INPUTS, STRUCTURES, Training, as_captured, batches, training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a GPU only")

N_STEPS = 200


def taken(step: Callable[[Tensor], Any], xs: list[Tensor]) -> list[Any]:
    return [step(x) for x in xs]


def taken_eagerly(one: Training, xs: list[Tensor]) -> list[Any]:
    with as_captured():
        return taken(one.step, xs)


def state_of(one: Training) -> list[Tensor]:
    moments = [value for state in one.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [tensor.clone() for tensor in (*one.model.state_dict().values(), *moments)]


def assert_same(one: Training, other: Training) -> None:
    for mine, theirs in zip(state_of(one), state_of(other), strict=True):
        assert torch.equal(mine, theirs.to(mine.device))


def assert_same_results(found: list[Any], wanted: list[Any]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        for key, value in mine.items():
            assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize(("method", "structure"), CASES)
def test_captured_steps_are_the_padded_ones_to_the_last_bit(method: str, structure: str) -> None:
    captured, eager = training(method, structure), training(method, structure)
    step, xs = sp.capture(captured.step), batches(N_STEPS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = taken(step, xs)
    messages = [str(each.message) for each in said if "is not captured" in str(each.message)]
    assert bool(step.n_captures) != bool(messages), messages
    if (method, structure) not in EAGER:
        assert not messages
        assert captured.n_taken < N_STEPS / 2, "hardly any step was replayed"
        assert_same_results(found, taken_eagerly(eager, xs))
        assert_same(captured, eager)
    else:
        assert len(messages) <= 1
        assert captured.n_taken == N_STEPS + len(messages)


@pytest.mark.parametrize(("method", "structure"), [case for case in CASES if case not in EAGER])
def test_captured_steps_are_the_plain_ones_up_to_rounding(method: str, structure: str) -> None:
    """In float64, so that rounding does not decide which assignments there are."""
    options: dict[str, Any] = {"dtype": torch.float64, "make": lambda p: torch.optim.Adam(p, lr=1e-5)}
    captured, plain = training(method, structure, **options), training(method, structure, **options)
    xs = batches(N_STEPS, dtype=torch.float64)
    for mine, theirs in zip(taken(sp.capture(captured.step), xs), taken(plain.step, xs), strict=True):
        torch.testing.assert_close(mine["objective"], theirs["objective"].detach(), rtol=1e-5, atol=1e-12)
        assert torch.equal(mine["calls"], theirs["calls"])


@pytest.mark.parametrize("method", ["SparseMAP", "distinct_bound", "ScoreFunction"])
def test_state_that_changes_before_a_size_is_read(method: str) -> None:
    """Running statistics, counters and noise, however often a step is begun again."""
    structure = "bits"
    captured, eager = training(method, structure, has_norm=True), training(method, structure, has_norm=True)
    counts = [torch.zeros(2, dtype=torch.int64, device="cuda") for _ in range(2)]

    def counting(one: Training, count: Tensor) -> Callable[[Tensor], Any]:
        def step(x: Tensor) -> Any:
            count[0] += 1
            noise = torch.randn(x.shape, device="cuda") * 0.01  # from the global generator
            result = one.step(x + noise)
            count[1:] += 1
            return result

        return step

    xs = batches(N_STEPS)
    torch.manual_seed(5)
    step = sp.capture(counting(captured, counts[0]))
    found = taken(step, xs)
    noise = torch.randn(3, device="cuda")
    torch.manual_seed(5)
    with as_captured():
        wanted = taken(counting(eager, counts[1]), xs)
    assert torch.equal(noise, torch.randn(3, device="cuda"))
    assert_same_results(found, wanted)
    assert_same(captured, eager)
    assert counts[0].tolist() == [N_STEPS, N_STEPS]
    assert captured.model.state_dict()["norm.num_batches_tracked"] == N_STEPS
    assert torch.equal(captured.generator.get_state(), eager.generator.get_state())
    if method == "SparseMAP":
        assert step.n_captures > 1


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True, weight_decay=0.1),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "Adam, AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-3),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-3),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rates_of_schedulers_and_assignments_have_an_effect(name: str) -> None:
    captured, eager, constant = (training("SparseMAP", "bits", make=OPTIMIZERS[name]) for _ in range(3))
    xs = batches(60)

    def all_steps(one: Training, step: Callable[[Tensor], Any], *, changes: bool = True) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(one.optimizer, 0.97)
        for i, x in enumerate(xs):
            step(x)
            if changes:
                scheduler.step()
            if changes and i == 40:
                one.optimizer.param_groups[0]["lr"] = 2e-2

    step = sp.capture(captured.step)
    all_steps(captured, step)
    with as_captured():
        all_steps(eager, eager.step)
        all_steps(constant, constant.step, changes=False)
    assert step.n_captures
    for mine, theirs in zip(state_of(captured), state_of(eager), strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.device), rtol=1e-5, atol=1e-6)
    if name != "Rprop":  # whose rate is that of the first step
        assert any(not torch.allclose(*pair) for pair in zip(state_of(captured), state_of(constant), strict=True))


def test_other_options_of_an_optimizer_are_seen() -> None:
    captured, eager = training("SparseMAP", "bits"), training("SparseMAP", "bits")
    step, xs = sp.capture(captured.step), batches(60)
    for one, take in ((captured, step), (eager, eager.step)):
        for i, x in enumerate(xs):
            if i == 30:
                one.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
            if one is eager:
                with as_captured():
                    take(x)
            else:
                take(x)
    assert_same(captured, eager)


def test_state_of_an_optimizer_that_is_loaded() -> None:
    captured, eager = training("SparseMAP", "bits"), training("SparseMAP", "bits")
    step, xs = sp.capture(captured.step), batches(60)
    taken(step, xs[:20])
    taken_eagerly(eager, xs[:20])
    saved = [copy.deepcopy(one.optimizer.state_dict()) for one in (captured, eager)]
    taken(step, xs[20:40])
    taken_eagerly(eager, xs[20:40])
    captured.optimizer.load_state_dict(saved[0])
    eager.optimizer.load_state_dict(saved[1])
    taken(step, xs[40:])
    taken_eagerly(eager, xs[40:])
    assert step.n_captures
    assert_same(captured, eager)


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, is_outside: bool) -> None:
    captured, eager = training("SparseMAP", "bits"), training("SparseMAP", "bits")

    def cast(one: Training) -> Callable[[Tensor], Any]:
        def step(x: Tensor) -> Any:
            with torch.autocast("cuda", dtype):
                return one.step(x)

        return step

    def cast_around(x: Tensor) -> Any:
        with torch.autocast("cuda", dtype):
            return around(x)

    around = sp.capture(captured.step)
    inside = sp.capture(cast(captured))
    xs = batches(60)
    found = taken(cast_around if is_outside else inside, xs)
    assert (around if is_outside else inside).n_captures
    with as_captured():
        wanted = taken(cast(eager), xs)
    assert_same_results(found, wanted)
    assert_same(captured, eager)


@pytest.mark.parametrize("fused", [True, False])
def test_gradient_scaler(fused: bool) -> None:
    """With a fused optimizer it does not read from the device, else it does."""
    options: dict[str, Any] = {"make": lambda p: torch.optim.Adam(p, lr=1e-3, fused=fused)}
    captured, eager = training("SparseMAP", "bits", **options), training("SparseMAP", "bits", **options)

    def scaled(one: Training) -> Callable[[Tensor], Any]:
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=10)

        def step(x: Tensor) -> Any:
            one.optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                objective, calls = one.model(x, one.generator)
            scaler.scale(objective).backward()
            scaler.step(one.optimizer)
            scaler.update()
            return {"objective": objective, "calls": calls}

        return step

    step, xs = sp.capture(scaled(captured)), batches(60)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = taken(step, xs)
    assert len([each for each in said if "is not captured" in str(each.message)]) == (not fused)
    assert bool(step.n_captures) == fused
    if fused:
        with as_captured():
            assert_same_results(found, taken(scaled(eager), xs))
        assert_same(captured, eager)


def test_several_distributions_in_one_step() -> None:
    def steps(one: Training, other: Training) -> Callable[[Tensor], Any]:
        def step(x: Tensor) -> Any:
            first = one.step(x)
            q = sp.sparsemap(one.model.scores(x).detach(), sp.Bits(10)).truncate(3)
            return {**first, "second": other.step(x)["objective"], "entropy": q.entropy(), "mode": q.mode}

        return step

    pairs = [(training("SparseMAP", "bits"), training("Sparse", "one-of")) for _ in range(2)]
    step, xs = sp.capture(steps(*pairs[0])), batches(300)
    found = taken(step, xs)
    assert step.n_captures
    with as_captured():
        wanted = taken(steps(*pairs[1]), xs)
    assert_same_results(found, wanted)
    for mine, theirs in zip(pairs[0], pairs[1], strict=True):
        assert_same(mine, theirs)


def reads(x: Tensor) -> Tensor:
    return x * float(x.sum().item() > 0)  # HERE


def prints(x: Tensor) -> Tensor:
    print(x.sum())  # noqa: T201  HERE
    return x


def branches(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else 2 * x  # HERE


def masks(x: Tensor) -> Tensor:
    return x + x[x > 0].mean()  # HERE


def makes(x: Tensor) -> Tensor:
    return x * torch.tensor(2.0).to("cuda")  # HERE


def makes_there(x: Tensor) -> Tensor:
    return x * torch.tensor([2.0], device="cuda")  # HERE


SCALE = torch.tensor(2.0)


def mixes(x: Tensor) -> Tensor:
    return x * SCALE  # HERE


def draws(x: Tensor) -> Tensor:
    return x + torch.rand(1).to("cuda")  # HERE


def waits(x: Tensor) -> Tensor:
    torch.cuda.synchronize()  # HERE
    return x


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("look", [reads, prints, branches, masks, makes, makes_there, mixes, draws, waits])
def test_a_step_that_cannot_be_captured_stays_eager(look: Callable[[Tensor], Tensor], is_late: bool) -> None:
    """Everything is as if it had always been eager, also what had been done when the attempt failed."""
    captured, eager = training("SparseMAP", "bits", has_norm=True), training("SparseMAP", "bits", has_norm=True)
    count = [torch.zeros((), device="cuda") for _ in range(2)]

    def looking(one: Training, count: Tensor) -> Callable[[Tensor], Any]:
        def step(x: Tensor) -> Any:
            count.add_(1)
            if not is_late:
                x = look(x)
            result = one.step(x)
            return {key: look(value) if is_late and key == "objective" else value for key, value in result.items()}

        return step

    xs = batches(20)
    torch.manual_seed(3)
    step = sp.capture(looking(captured, count[0]))
    with pytest.warns(UserWarning, match=r"is not captured.*test_on_gpu.py:\d+") as said:
        found = taken(step, xs)
    assert len(said) == 1
    line = int(str(said[0].message).split("test_on_gpu.py:")[1].split(".")[0])
    with open(__file__) as file:
        assert "HERE" in file.readlines()[line - 1]
    assert not step.n_captures
    assert captured.n_taken == len(xs) + 1 or not is_late
    torch.manual_seed(3)
    wanted = taken(looking(eager, count[1]), xs)
    assert torch.equal(*count)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine["objective"], theirs["objective"].detach(), rtol=1e-3, atol=1e-4)
    n_batches = [one.model.state_dict()["norm.num_batches_tracked"].item() for one in (captured, eager)]
    assert n_batches == [len(xs)] * 2
    assert torch.equal(captured.generator.get_state(), eager.generator.get_state())
    # The device is as before: noise can be drawn, and other steps are captured.
    torch.rand(2, device="cuda")
    other = training("SparseMAP", "bits")
    step = sp.capture(other.step)
    taken(step, xs)
    assert step.n_captures


def test_an_optimizer_that_cannot_be_captured() -> None:
    one = training("SparseMAP", "bits", make=lambda p: torch.optim.Adagrad(p, lr=1e-2))
    other = training("SparseMAP", "bits", make=lambda p: torch.optim.Adagrad(p, lr=1e-2))
    with pytest.warns(UserWarning, match="is not captured") as said:
        taken(sp.capture(one.step), batches(10))
    assert len(said) == 1
    taken(other.step, batches(10))
    for mine, theirs in zip(state_of(one), state_of(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_arguments_of_other_forms() -> None:
    captured, eager = training("SparseMAP", "bits"), training("SparseMAP", "bits")
    step = sp.capture(captured.step, most_forms=2)
    xs = [x for i in range(20) for x in (batches(20, size=16)[i], batches(20, size=9)[i])]
    taken(step, xs)
    assert step.n_captures >= 2
    taken_eagerly(eager, xs)
    assert_same(captured, eager)
    with pytest.warns(UserWarning, match="most_forms") as said:
        taken(step, batches(5, size=11))
    assert len(said) == 1


def test_arguments_that_are_not_captured() -> None:
    one = training("SparseMAP", "bits")
    (x,) = batches(1)

    def step(inputs: dict[str, Any], factor: float, *, others: tuple[Tensor, ...] = ()) -> Any:
        return {"result": one.step(inputs["x"] * factor + (others[0].to("cuda") if others else 0.0))}

    captured = sp.capture(step)
    for _ in range(5):
        captured({"x": x}, 1.0)
    assert captured.n_captures == 1
    with pytest.warns(UserWarning, match="on cpu"):
        captured({"x": x}, 1.0, others=(torch.ones(()),))
    with pytest.warns(UserWarning, match="requires a gradient"):
        captured({"x": x.clone().requires_grad_()}, 1.0)
    with pytest.warns(UserWarning, match="hashable"):
        captured({"x": x, "y": bytearray()}, 1.0)
    captured({"x": x, "y": bytearray()}, 1.0)  # says it once
    assert captured({"x": x}, 1.0)["result"]["objective"].isfinite()


@pytest.mark.parametrize("method", ["SparseMAP", "Sparse", "TopK", "ScoreFunction", "distinct_bound"])
def test_rows_without_a_distribution(method: str) -> None:
    """The error of the eager step, which changes nothing."""
    structure = "one-of" if method == "Sparse" else "bits"
    one, never = training(method, structure, has_norm=True), training(method, structure, has_norm=True)
    bad = [torch.zeros((), dtype=torch.bool, device="cuda") for _ in range(2)]
    step, xs = sp.capture(bad_step(one)), batches(60)
    for i, x in enumerate(xs):
        if i % 20 == 10:
            before, noise = state_of(one), one.generator.get_state()
            with pytest.raises(ValueError, match="3"):
                step(x, ~bad[0])
            for mine, theirs in zip(state_of(one), before, strict=True):
                assert torch.equal(mine, theirs)
            assert torch.equal(one.generator.get_state(), noise)
        step(x, bad[0])
    assert step.n_captures
    with as_captured():
        for x in xs:
            bad_step(never)(x, bad[1])
    assert_same(one, never)


def bad_step(one: Training) -> Callable[[Tensor, Tensor], Any]:
    """A step whose scores of row 3 are NaN on request."""

    def step(x: Tensor, is_bad: Tensor) -> Any:
        def spoil(_module: nn.Module, _args: Any, scores: Tensor) -> Tensor:
            row = torch.arange(len(x), device=x.device).unsqueeze(1)
            return torch.where((row == 3) & is_bad, torch.nan, scores)

        hook = one.model.encoder.register_forward_hook(spoil)
        try:
            return one.step(x)
        finally:
            hook.remove()

    return step


def test_memory_is_bounded() -> None:
    """With more sizes than are kept."""
    one = training("SparseMAP", "bits")

    def at_scale(x: Tensor, scale: Tensor) -> Any:
        return one.step(x * scale)

    step = sp.capture(at_scale, most_captures=3)
    reserved = []
    for turn in range(12):
        for i, x in enumerate(batches(60, size=200)):
            step(x, torch.tensor(2.0 ** -((turn * 7 + i) % 12), device="cuda"))
        assert step.n_captures <= 3
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[6:]) <= 1.1 * reserved[5]
    step.forget()
    assert step.n_captures == 0


def test_results_are_copies_and_methods_are_captured() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.one = training("SparseMAP", "bits")

        @sp.capture
        def step(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            found = self.one.step(x)
            return found["objective"], [found["calls"]]

    trainer, xs = Trainer(), batches(10)
    first = [trainer.step(x) for x in xs]
    kept = [(objective.clone(), calls.clone()) for objective, (calls,) in first]
    taken(trainer.step, xs)
    for (objective, (calls,)), (was, were) in zip(first, kept, strict=True):
        assert torch.equal(objective, was)
        assert torch.equal(calls, were)
        assert not objective.requires_grad


def test_work_around_the_step_waits_for_it() -> None:
    """What is queued before and after a step, on the stream of the caller, whichever that is."""
    weight = torch.zeros(1000, 1000, device="cuda")
    step = sp.capture(lambda x: weight.add_(x @ x))
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        weight.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            total, x = torch.zeros_like(weight), torch.eye(1000, device="cuda")
            for i in range(50):
                x.fill_(0).diagonal().fill_(i)
                result = step(x)
                total += result.diagonal()[:1]
            torch.cuda.synchronize()
        assert weight[0, 0] == sum(i * i for i in range(50))
        assert total[0, 0] == sum(sum(j * j for j in range(i + 1)) for i in range(50))


class Codes(nn.Module):
    """A codebook, which counts how often its codes are used and revives those that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.codebook = sp.nn.SparseCodebook(8, N_INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        found = self.codebook(x)
        objective: Tensor = (found.vectors - x).square().mean() + found.distortion.mean()
        return objective


class Normalized(nn.Module):
    """Scores that are normalized over the batch, with running statistics, before a size is read."""

    def __init__(self, *, learn_temperature: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(N_INPUTS, 10), sp.nn.ScoreNorm(10, learn_temperature=learn_temperature))
        self.decoder = nn.Linear(10, N_INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        q = sp.sparsemap(self.encoder(x), sp.Bits(10))
        loss: Tensor = q.expect(lambda z, row: (self.decoder(z) - x[row]).square().mean(-1))
        return (loss - 0.1 * q.entropy()).mean()


class Routed(nn.Module):
    """A router over candidates that differ from step to step, or over all options, which counts their use."""

    def __init__(self, *, has_candidates: bool) -> None:
        super().__init__()
        self.router = sp.nn.Router(N_INPUTS, 50, temperature=2.0)
        self.payload = nn.Parameter(torch.randn(50, N_INPUTS))
        self.has_candidates = has_candidates

    def forward(self, x: Tensor) -> Tensor:
        candidates = (x * 1e4).long().remainder(51) - 1 if self.has_candidates else None  # -1 is none
        q = self.router(x, candidates)
        loss: Tensor = q.expect(lambda option, row: (self.payload[option] - x[row]).square().mean(-1))
        return loss.mean()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "SparseCodebook": Codes,
    "ScoreNorm": lambda: Normalized(learn_temperature=False),
    "ScoreNorm, temperature": lambda: Normalized(learn_temperature=True),
    "Router": lambda: Routed(has_candidates=False),
    "Router, candidates": lambda: Routed(has_candidates=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_the_library_with_state(name: str) -> None:
    """Statistics, counters and weights are those of padded eager steps, to the last bit."""
    torch.manual_seed(0)
    models = [MODULES[name]().to("cuda") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]

    def make(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Any]:
        def step(x: Tensor) -> Any:
            optimizer.zero_grad()
            objective = model(x)
            objective.backward()
            optimizer.step()
            return {"objective": objective}

        return step

    xs = batches(N_STEPS)
    step = sp.capture(make(models[0], optimizers[0]))
    torch.manual_seed(1)  # codes are drawn from the global generator
    found = taken(step, xs)
    assert step.n_captures
    torch.manual_seed(1)
    with as_captured():
        wanted = taken(make(models[1], optimizers[1]), xs)
    assert_same_results(found, wanted)
    for mine, theirs in zip(models[0].modules(), models[1].modules(), strict=True):  # not all buffers are in state dicts
        for tensors in (mine.named_parameters, mine.named_buffers):
            others = dict(getattr(theirs, tensors.__name__)())
            for key, value in tensors():
                assert torch.equal(value, others[key]), key
    if isinstance(models[0], Normalized):
        assert models[0].encoder[1].get_buffer("seen").gt(0.9).all()
    if isinstance(models[0], Routed):
        assert models[0].router.n_queries == N_STEPS * BATCH


def test_every_structure_and_batch_size_is_in_the_cases() -> None:
    assert {structure for _, structure in CASES} == set(STRUCTURES)
    assert batches(1)[0].shape == (BATCH, N_INPUTS)
