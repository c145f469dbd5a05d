"""Options: one field of Args says everything about each."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import NAMES, experiment_class, experiment_options, make_args, uses

CASES = [(name, option) for name in NAMES for option in experiment_options(name).values()]


@pytest.mark.parametrize(("name", "option"), CASES, ids=lambda value: getattr(value, "name", value))
def test_an_option_is_documented_and_its_methods_exist(name: str, option: Any) -> None:
    assert option.help[0].isupper() or option.help.startswith(("r in", "batch"))
    assert option.help.rstrip("]").endswith((".", "them", "own", "10", "uniform")), option.help
    known = set(experiment_class(name).methods)
    shared = {"gumbel", "st-gumbel", "st-gumbel-mode"}  # of the options that all experiments have
    assert set(option.methods or ()) | set(option.ignored_by) <= known | shared
    if option.default not in (None, ""):
        assert option.parse(str(option.default)) == option.default


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("lr", "fast", "--lr: 'fast' is not a number"),
        ("k", "1.5", "--k: '1.5' is not an integer"),
        ("bits", "", "--bits: '' is not an integer"),
        ("solver", "simplex", "--solver: 'simplex' is not one of nested, systematic, active-set"),
        ("device", "tpu", "--device: 'tpu' is not one of auto, cpu, cuda"),
    ],
)
def test_a_text_that_is_not_a_value_is_named(name: str, text: str, wanted: str) -> None:
    with pytest.raises(UsageError) as failure:
        experiment_options("bitvector-vae")[name].parse(text)
    assert str(failure.value) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"lr": -1.0}, "--lr must be at least 0, got -1.0"),
        ({"lr": float("inf")}, "--lr must be a finite number, got inf"),
        ({"seed": 10**150}, "--seed must be less than 9223372036854775808, got 1000"),
        ({"bits": 10**9}, "--bits must be at most 65536, got 1000000000"),
        ({"k": True}, "--k must be an integer, got True"),
        ({"solver": "x"}, "--solver must be one of '', 'nested', 'systematic' or 'active-set', got 'x'"),
        ({"colour": 1}, "--colour is not an option of bitvector-vae"),
        ({"budget": 40, "method": "sparsemap-budget"}, "--budget must be from 1 to 32, the number of bits, got 40"),
        ({"bits": 20, "method": "dense"}, "--bits must be at most 12, got 20"),
        ({"entropy": 2.0, "method": "wake-wake"}, "--entropy must be 1, got 2.0"),
    ],
)
def test_a_wrong_value_is_named_with_its_limits(options: dict[str, Any], message: str) -> None:
    method = options.pop("method", "topk")
    with pytest.raises(ValueError, match=re.escape(message)):
        make_args("bitvector-vae", method, options)


def test_which_methods_use_an_option() -> None:
    assert uses("ssvae", "sum-and-sample", "k")
    assert not uses("ssvae", "sparse", "k")
    assert not uses("bitvector-vae", "wake-wake", "entropy")
    assert uses("bitvector-vae", "topk", "entropy")
    assert uses("an experiment of another version", "sparse", "k")


def test_presets_follow_the_name_of_a_folder() -> None:
    """A folder of a data set has the presets of the data set."""
    by_name, by_path = (make_args("ssvae", "sparse", {"data": data}) for data in ("mnist", "/somewhere/mnist"))
    assert by_path.replace(data="mnist") == by_name
