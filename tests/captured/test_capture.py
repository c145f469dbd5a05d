"""On a CPU a captured step is the step; arguments are checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp
from tests.captured.training import batches, training


@pytest.mark.parametrize(("method", "structure"), [("SparseMAP", "bits"), ("distinct_bound", "one-of"), ("NVIL", "groups")])
def test_on_a_cpu_it_is_the_eager_step(method: str, structure: str) -> None:
    captured, plain = (training(method, structure, device="cpu") for _ in range(2))
    step = sp.capture(captured.step)
    for x in batches(5, "cpu"):
        found, wanted = step(x), plain.step(x)
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        assert not found["objective"].requires_grad
    assert captured.n_taken == 5
    assert step.n_captures == 0
    assert all(map(torch.equal, captured.model.state_dict().values(), plain.model.state_dict().values()))
    step.forget()


def test_decorators_functions_and_methods() -> None:
    @sp.capture
    def double(x: Tensor) -> Tensor:
        """Twice."""
        return 2 * x

    @sp.capture(most_captures=2, most_forms=1)
    def triple(x: Tensor, *, y: list[Tensor]) -> dict[str, list[Tensor]]:
        return {"all": [3 * x, *y]}

    class Counter:
        n = 0

        @sp.capture
        def count(self, x: Tensor) -> None:
            self.n += int(x)

    one = torch.ones(())
    assert double(one) == 2
    assert (vars(double)["__name__"], double.__doc__) == ("double", "Twice.")
    assert triple(one, y=[one])["all"] == [3, 1]
    counter = Counter()
    counter.count(one)
    assert counter.n == 1
    assert double(torch.ones(2, requires_grad=True)).grad_fn is None


def test_results_are_copies() -> None:
    total = torch.zeros(1)
    step = sp.capture(lambda: total.add_(1))
    first = step()
    step()
    assert (float(first), float(total)) == (1, 2)


def test_arguments() -> None:
    with pytest.raises(TypeError, match="step must be a function, got int"):
        sp.capture(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="most_captures"):
        sp.capture(lambda: None, most_captures=0)
    with pytest.raises(TypeError, match="most_forms"):
        sp.capture(lambda: None, most_forms=1.5)  # type: ignore[call-overload]
