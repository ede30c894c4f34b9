"""The rules about JAX say what JAX does: their examples and cases run with it, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_cases import cases, marked_lines, observe, observe_processes
from tpuctl.preflight.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
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
    "TPU614": {"RuntimeError", "ValueError"},  # by reading, and by donating again
    "TPU619": {"NameError", "ValueError"},
    "TPU620": {"ValueError"},
    "TPU623": {"ValueError"},
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
    "TPU622": lambda observation: any(
        "constants were captured" in text for text in observation["warnings"]
    ),
    "TPU616": lambda observation: observation["different_lines"] <= 2,
}
# A rule about several processes, and what JAX may raise in them.
PROCESSES = "TPU613"
# Another: what it says is an error in every process.
READING = "TPU637"
# In marked lines of these, one of several processes waits forever.
ENDLESS = ("TPU615", "TPU638")
# What these say shows only where a program starts the processes itself.
STARTING = ("TPU617", "TPU618", "TPU621")
# About time, files and options of a whole run, which the observer of one step does not have.
READ = (*(f"TPU{number}" for number in range(624, 637)), "TPU639")
PROCESS_ERRORS = {"AssertionError", "ValueError"}
CODES = sorted({*ERRORS, *COSTS, PROCESSES, READING, *ENDLESS, *STARTING, *READ})


def observed(code: str) -> list[Observation]:
    """What a rule's bad and good example and its cases do, in this order."""
    rule = RULES[code]
    bad = rule.bad
    if code == "TPU610":  # the observer looks for the state of this name
        bad = bad.replace("weights = jnp.ones(8)", "first = weights = jnp.ones(8)")
    good = rule.good.replace("weights = jnp.ones(8)", "first = weights = jnp.ones(8)")
    sources = [bad, good, *(case["source"] for case in cases(code))]
    options = {"JAX_DEBUG_KEY_REUSE": "1"} if code == "TPU611" else {}
    return observe(PACKAGES, OBSERVER, sources, JAX_PLATFORMS="cpu", **options)


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
    code: str,
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
    code: str,
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


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [2, 4])
def test_marked_programs_do_in_several_processes_what_rule_says(count: int) -> None:
    rule = RULES[PROCESSES]
    running = [case for case in cases(PROCESSES) if case.get("runs", True)]
    sources = [rule.bad, rule.good, *(case["source"] for case in running)]
    bad, good, *others = observe_processes(PACKAGES, OBSERVER, count, sources, JAX_PLATFORMS="cpu")
    assert {each["error"] for each in bad} <= PROCESS_ERRORS, bad
    assert not any(each["error"] for each in good), good
    assert len({each["part"] for each in good}) == count, good
    for case, processes in zip(running, others, strict=True):
        marked = [number for number, line in enumerate(case["source"].split("\n"), 1)
                  if f"# {PROCESSES}" in line]  # fmt: skip
        raised = {(each["error"], each["line"]) for each in processes}
        if "raises" in case:
            assert raised == {(case["raises"], marked[0])}, (case["why"], processes)
            assert case["raises"] in PROCESS_ERRORS, case["why"]
            continue
        assert raised == {("", 0)}, (case["why"], processes)
        parts = {each["part"] for each in processes}
        is_copied = len(parts) == 1 and parts != {""}
        is_alone = all(each["is_alone"] for each in processes)
        assert (is_copied or is_alone) == bool(marked), (case["why"], processes)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_processes_cannot_read_values_of_others() -> None:
    rule = RULES[READING]
    sources = [rule.bad, rule.good, *(case["source"] for case in cases(READING))]
    bad, good, *others = observe_processes(PACKAGES, OBSERVER, 2, sources, JAX_PLATFORMS="cpu")
    assert {each["error"] for each in bad} == {"RuntimeError"}, bad
    assert not any(each["error"] for each in good), good
    for case, processes in zip(cases(READING), others, strict=True):
        marked = [number for number, line in enumerate(case["source"].split("\n"), 1)
                  if f"# {READING}" in line]  # fmt: skip
        raised = {(each["error"], each["line"]) for each in processes}
        assert raised == {(case["raises"], marked[0]) if marked else ("", 0)}, (case["why"], raised)
