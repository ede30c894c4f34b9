"""The rules about traced code, compared with XLA's verdicts on some hundred function bodies."""

from __future__ import annotations

import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Severity, Target

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "corpus" / "expressions" / "bodies.toml"
BODIES: list[dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))["body"]
# XLA's clients compute these before compilation, since all arguments are constant.
FOLDED = ("tf.random.stateless_binomial", "tf.math.sobol_sample", "tf.strings.length('abc')")
# A dataset created within a function is mistaken for one of the loops that run on the host.
HOST = "tf.data.Dataset.range(3)"
PROGRAM = """import tensorflow as tf


@tf.function(autograph={autograph})
def f(x: tf.Tensor, l: tf.Tensor, n: tf.Tensor, b: tf.Tensor, u: tf.Tensor):
{body}
"""


def verdict_of(folder: Path, body: dict[str, Any]) -> str:
    """The check's worst severity for a body; lost checks do not affect compilation."""
    text = textwrap.indent(body["source"], "    ")
    source = PROGRAM.format(autograph=body.get("autograph", True), body=text)
    checked = RuleChecker(folder, "TPU0", "TPU1")
    findings = checked.findings(source, Target(tensorflow="2.18.0"), {})
    severities = {finding.severity for finding in findings}
    if Severity.error in severities:
        return "error"
    return "cost" if Severity.cost in severities else "good"


def test_findings_match_compiler(tmp_path: Path) -> None:
    wrong = [
        f"{body['verdict']}, not {verdict_of(tmp_path, body)}:\n{body['source']}"
        for body in BODIES
        if HOST not in body["source"]
        and not any(marker in body["source"] for marker in FOLDED)
        and verdict_of(tmp_path, body) != body["verdict"]
    ]
    assert len(BODIES) > 250
    assert not wrong, "\n".join(wrong)


def test_every_verdict_has_cases() -> None:
    verdicts = [body["verdict"] for body in BODIES]
    assert min(verdicts.count(verdict) for verdict in ("good", "cost", "error")) >= 15


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_compiler_verdicts_are_current() -> None:
    from tests.support.lowering_environment import lowering_python

    program = ROOT / "tests" / "benchmarks" / "programs" / "expressions.py"
    done = subprocess.run(
        [lowering_python(), program, FILE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
