"""Every benchmark runs in its smallest form; a failed one does not affect the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure
from tests.benchmarks.run import LONG, SECTIONS, main
from tests.support.gcloud import require_gcloud
from tests.support.locked_environment import is_made
from tpuctl.preflight.compile.environments import COMPILER, LOWERING, Environments

RUN = Path(__file__).with_name("run.py")
LOCKS = Path(__file__).resolve().parents[2] / "requirements" / "benchmarks"
MEASURED = (pytest.mark.soak, pytest.mark.release("a measurement, also part of `make bench`"))
# Sections that run gcloud, start TensorFlow or several programs, or wait for a pace.
SLOW = {"gcloud", "scripts", "fanout", "gs", "logs", "tokens", "up", *LONG}
GCLOUD = {"gcloud", "scripts", "fanout"}
TENSORFLOW = {"gs", "tokens", "preparation", "pretraining"}
# Environments that download gigabytes are not created for a test.
LOCKED = {"preparation": ("datasets",), "pretraining": ("keras-hub", "tf-models")}


def sections() -> Iterator[object]:
    for name in SECTIONS | LONG:
        marks = [*MEASURED] if name in SLOW else []
        marks += [pytest.mark.tensorflow] if name in TENSORFLOW else []
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(sections()))
def test_section_has_figures_in_its_smallest_form(name: str) -> None:
    if name in GCLOUD:
        require_gcloud()
    absent = [lock for lock in LOCKED.get(name, ()) if not is_made(LOCKS / f"{lock}.lock")]
    if name == "memory":
        compilers = (LOWERING, COMPILER)
        absent += [kind.name for kind in compilers if not Environments().is_installed(kind)]
    if absent:
        pytest.skip(f"needs missing environments; create them with: make bench ONLY={name}")
    done = subprocess.run(
        [sys.executable, str(RUN), name],
        env={**os.environ, "TPUCTL_BENCH_SMALLEST": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    assert figures, done.stderr


def fine() -> Iterator[Figure]:
    yield Figure("latency of this", "17 ms")


def raises() -> Iterator[Figure]:
    yield Figure("what came before", "23 ms")
    raise TypeError("not a path")


def admits_failure() -> Iterator[Figure]:
    yield Figure("throughput of that", "exit code 3", has_failed=True)


def test_failed_section_keeps_figures_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    sections = {"first": raises, "second": admits_failure, "third": fine}
    assert main([], sections) == 1
    output = capsys.readouterr()
    for figure in ("what came before", "throughput of that", "latency of this"):
        assert figure in output.out
    assert "Traceback" in output.err and "in raises" in output.err
    assert output.out.splitlines()[-2:] == [
        "failed: first: TypeError: not a path",
        "failed: second: throughput of that: exit code 3",
    ]


def test_sections_that_succeed_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["third"], {"first": raises, "third": fine}) == 0
    assert "failed" not in capsys.readouterr().out


def test_section_whose_module_cannot_be_imported_fails_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tests.benchmarks.commands", None)  # as an import fails
    assert main(["help", "fine"], {**SECTIONS, "fine": fine}) == 1
    output = capsys.readouterr().out
    assert "latency of this" in output
    assert "failed: help: ModuleNotFoundError" in output


def test_unknown_section_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"], SECTIONS) == 2
    assert "no such benchmark: nothing" in capsys.readouterr().out
