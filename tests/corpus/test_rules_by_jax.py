"""The rules about JAX say what JAX does: their examples and cases run with it, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.locked_environment import locked_python
from tpuctl.preflight.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "check"
PACKAGES = ROOT / "requirements" / "jax.lock"
OBSERVER = Path(__file__).with_name("jax_observer.py")
ITERATIONS = 25  # the observer shortens loops to a few more
Observation = dict[str, Any]
# Rules about programs that fail, and what JAX may raise.
ERRORS = {
    "TPU601": {"TracerBoolConversionError"},
    "TPU602": {
        *("ConcretizationTypeError", "TracerArrayConversionError", "TracerIntegerConversionError"),
    },
    "TPU603": {"IndexError", "TypeError", "ConcretizationTypeError"},
    "TPU604": {"NonConcreteBooleanIndexError", "ConcretizationTypeError"},
    "TPU611": {"KeyReuseError"},
}
# Rules about programs that run, and whether a program does what the rule says.
COSTS: Mapping[str, Callable[[Observation], bool]] = {
    **dict.fromkeys(
        ("TPU605", "TPU606", "TPU607"),
        lambda observation: bool(observation["compilations"] >= ITERATIONS),
    ),
    "TPU608": lambda observation: bool(observation["lines"] >= ITERATIONS),
    "TPU609": lambda observation: bool(observation["reads"] >= ITERATIONS),
    "TPU610": lambda observation: not observation["is_donated"],
    "TPU612": lambda observation: any(
        "dtype float64 requested" in text for text in observation["warnings"]
    ),
}
CODES = sorted({*ERRORS, *COSTS})


def cases(code: str) -> list[dict[str, Any]]:
    (file,) = CASES.glob(f"{code.lower()}_*.toml")
    listed: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["case"]
    return listed


def marked_lines(source: str) -> list[int]:
    """The lines that are certain to do what the rule says."""
    lines = enumerate(source.split("\n"), 1)
    return [number for number, line in lines if "# TPU" in line and " risk" not in line]


@pytest.fixture(scope="module")
def observed() -> Callable[[str], list[Observation]]:
    """What a rule's bad and good example and its cases do, in this order."""
    python = locked_python(PACKAGES)

    def observe(code: str) -> list[Observation]:
        rule = RULES[code]
        bad = rule.bad
        if code == "TPU610":  # the observer looks for the state of this name
            bad = bad.replace("weights = jnp.ones(8)", "first = weights = jnp.ones(8)")
        good = rule.good.replace("weights = jnp.ones(8)", "first = weights = jnp.ones(8)")
        sources = [bad, good, *(case["source"] for case in cases(code))]
        environment = {"JAX_PLATFORMS": "cpu"} | (
            {"JAX_DEBUG_KEY_REUSE": "1"} if code == "TPU611" else {}
        )
        done = subprocess.run(
            [python, OBSERVER],
            input=json.dumps(sources),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        observations: list[Observation] = json.loads(done.stdout)
        return observations

    return observe


def test_every_rule_about_jax_is_held_against_it() -> None:
    assert [code for code in RULES if code.startswith("TPU6")] == CODES
    for code, errors in ERRORS.items():
        for case in cases(code) if code != "TPU611" else ():
            is_error = bool(marked_lines(case["source"]))
            assert ("raises" in case) == is_error, case["why"]
            assert case.get("raises", next(iter(errors))) in errors, case["why"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("code", sorted(ERRORS))
def test_marked_programs_raise_in_marked_line(
    code: str, observed: Callable[[str], list[Observation]]
) -> None:
    bad, good, *others = observed(code)
    assert bad["error"] in ERRORS[code], bad
    assert not good["error"], good
    for case, observation in zip(cases(code), others, strict=True):
        lines = [number for number, line in enumerate(case["source"].split("\n"), 1)
                 if f"# {code}" in line and (code == "TPU611" or "error" in line)]  # fmt: skip
        assert bool(observation["error"]) == bool(lines), (case["why"], observation)
        if lines:
            assert observation["error"] == case.get("raises", "KeyReuseError"), (
                case["why"],
                observation,
            )
            assert observation["line"] == lines[0] or code == "TPU611", (case["why"], observation)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("code", sorted(COSTS))
def test_marked_programs_cost_what_rule_says(
    code: str, observed: Callable[[str], list[Observation]]
) -> None:
    is_costly = COSTS[code]
    bad, good, *others = observed(code)
    assert not bad["error"], bad
    assert not good["error"], good
    assert is_costly(bad), bad
    assert not is_costly(good), good
    for case, observation in zip(cases(code), others, strict=True):
        assert not observation["error"], (case["why"], observation)
        assert is_costly(observation) == (f"# {code}" in case["source"]), (case["why"], observation)
