"""The rules about PyTorch/XLA say what it does: their examples and cases run with it, on a CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.locked_environment import TORCH_LOCK, locked_python
from tests.support.rule_cases import cases, marked_lines, observe
from tests.support.subprocesses import run_captured
from tpuctl.preflight.rules import RULES

PACKAGES = TORCH_LOCK
ON_SEVERAL = "TPU705"  # a rule about programs that train on several devices
# About several processes, tokenizers, and other libraries; held against these by reading them.
READ = (
    *(f"TPU7{number:02}" for number in range(6, 16)),
    *(f"TPU7{number}" for number in range(17, 22)),
)
OBSERVER = Path(__file__).with_name("torch_observer.py")
ITERATIONS = 8  # the observer shortens loops to a few more
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
    "TPU716": lambda observation: bool(observation["compilations"] >= 5),
}


def running_cases(code: str) -> list[dict[str, Any]]:
    return [case for case in cases(code) if case.get("runs", True)]


def test_rules_about_torch_are_held_against_it() -> None:
    codes = sorted([*VERDICTS, ON_SEVERAL, *READ])
    assert [code for code in RULES if code.startswith("TPU7")] == codes


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


def gradients_of(source: str, folder: Path) -> dict[int, Any]:
    """The last gradients that a program uses on each of two devices, or "exchanged"."""
    script = folder / "train.py"
    script.write_text(f"from torch_gradients import range\n{source}", "utf-8")
    done = run_captured(
        [locked_python(PACKAGES), script],
        env={
            **os.environ,
            "PJRT_DEVICE": "CPU",
            "CPU_NUM_DEVICES": "2",
            "PYTHONPATH": str(OBSERVER.parent),
        },
    )
    gradients = dict(json.loads(line) for line in done.stdout.splitlines())
    is_exchanged = "exchanged" in gradients.values()
    assert gradients and (is_exchanged or done.returncode == 0), done.stderr[-2000:]
    return gradients


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_devices_of_marked_programs_use_gradients_of_their_own(tmp_path: Path) -> None:
    rule = RULES[ON_SEVERAL]
    first, second = gradients_of(rule.bad, tmp_path).values()
    assert first != second
    assert "exchanged" in gradients_of(rule.good, tmp_path).values()
    for case in cases(ON_SEVERAL):
        used = [*gradients_of(case["source"], tmp_path).values()]
        is_marked = f"# {ON_SEVERAL}" in case["source"]
        assert any(gradients != used[0] for gradients in used) == is_marked, case["why"]
        assert len(used) == 2 or not is_marked, case["why"]
