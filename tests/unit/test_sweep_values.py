"""The values of `run --each`, and what a sweep may cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpuctl.errors import Usage
from tpuctl.model.jobs.sweep import MAX_JOBS, SweepEstimate, combinations, parse_sweep
from tpuctl.view.jobs.sweep import sweep_sentence


def test_every_combination_the_last_option_first() -> None:
    assert parse_sweep(["lr=1e-3,1e-4", "--batch=64,128"], []) == [
        {"lr": "1e-3", "batch": "64"},
        {"lr": "1e-3", "batch": "128"},
        {"lr": "1e-4", "batch": "64"},
        {"lr": "1e-4", "batch": "128"},
    ]


def test_values_may_contain_commas_equals_signs_and_minus() -> None:
    assert parse_sweep(['layers="64,64",128'], []) == [{"layers": "64,64"}, {"layers": "128"}]
    assert parse_sweep(["config=a=1,-2"], []) == [{"config": "a=1"}, {"config": "-2"}]


@pytest.mark.parametrize("arguments", [["--lr", "1"], ["--lr=1"]])
def test_option_that_the_arguments_contain_is_rejected(arguments: list[str]) -> None:
    with pytest.raises(Usage, match="arguments contain --lr"):
        parse_sweep(["lr=1,2"], arguments)
    assert parse_sweep(["l=1"], arguments) == [{"l": "1"}]


def test_number_of_jobs_is_bounded() -> None:
    most = {"a": [str(number) for number in range(MAX_JOBS)]}
    assert len(combinations(most)) == MAX_JOBS
    with pytest.raises(Usage, match=f"{2 * MAX_JOBS} jobs, and the maximum is {MAX_JOBS}"):
        combinations(most | {"b": ["1", "2"]})
    with pytest.raises(Usage, match="no values"):
        combinations({"a": []})


@pytest.mark.parametrize(
    ("seconds_each", "timeout", "text"),
    [
        (1200.0, 7200.0, "about 2 h, $20.00, as the last successful one took 20 min."),
        (None, 3600.0, "at most 6 h, $60.00."),
        (None, None, "This stack costs $10.00/h."),
    ],
)
def test_sentence_has_time_and_cost_of_all_jobs(
    seconds_each: float | None, timeout: float | None, text: str
) -> None:
    estimate = SweepEstimate(6, 10.0, seconds_each, timeout)
    sentence = sweep_sentence(estimate, is_free=False)
    assert sentence.startswith("6 jobs run one after another")
    assert sentence.endswith(text)


def test_sentence_of_a_sweep_on_several_tpus() -> None:
    """Four at once, then the other two."""
    estimate = SweepEstimate(6, 40.0, 1200.0, None, tpus=4)
    sentence = sweep_sentence(estimate, is_free=False)
    assert sentence.startswith("6 jobs run on up to 4 TPUs at once: about 40 min, $26.67,")
    unknown = sweep_sentence(replace(estimate, seconds_each=None), is_free=False)
    assert unknown.endswith("This stack costs $40.00/h with 4 TPUs.")
