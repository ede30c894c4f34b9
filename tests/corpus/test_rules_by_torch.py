"""The rules about PyTorch/XLA say what it does: their examples and cases run with it, on a CPU.

Several processes that train together need several devices, so TPU705 is not held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_cases import cases, marked_lines, observe
from tpuctl.preflight.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "requirements" / "torch.lock"
OBSERVER = Path(__file__).with_name("torch_observer.py")
ITERATIONS = 25  # the observer shortens loops to a few more
Observation = dict[str, Any]
# Whether a program does what a rule says.
VERDICTS: Mapping[str, Callable[[Observation], bool]] = {
    "TPU701": lambda observation: (
        observation["error"] in ("RuntimeError", "AssertionError", "ValueError")
    ),
    "TPU702": lambda observation: (
        observation["executions"] < ITERATIONS or observation["compilations"] >= ITERATIONS
    ),
    "TPU703": lambda observation: bool(observation["reads"] >= ITERATIONS),
    "TPU704": lambda observation: bool(observation["compilations"] >= 5),
}


def running_cases(code: str) -> list[dict[str, Any]]:
    return [case for case in cases(code) if case.get("runs", True)]


def test_rules_about_torch_are_held_against_it() -> None:
    assert [code for code in RULES if code.startswith("TPU7")] == [*VERDICTS, "TPU705"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("code", VERDICTS)
def test_marked_programs_do_what_rule_says(code: str) -> None:
    rule = RULES[code]
    sources = [rule.bad, rule.good, *(case["source"] for case in running_cases(code))]
    does = VERDICTS[code]
    bad, good, *others = observe(PACKAGES, OBSERVER, sources, PJRT_DEVICE="CPU")
    assert does(bad), bad
    assert not good["error"], good
    assert not does(good), good
    for case, observation in zip(running_cases(code), others, strict=True):
        lines = marked_lines(case["source"])
        assert does(observation) == bool(lines), (case["why"], observation)
        assert observation["line"] == (lines[0] if observation["error"] else 0), (
            case["why"],
            observation,
        )
