"""Every benchmark runs in its smallest form; a failed one does not affect the others."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure, goal
from tests.benchmarks.run import LONG, PAGE, SECTIONS, Section, main, page_to_write
from tests.support.gcloud import require_gcloud
from tpuctl.preflight.compile.environments import COMPILER, LOWERING, Environments
from tpuctl.version import __version__

pytestmark = pytest.mark.long
RUN = Path(__file__).with_name("run.py")
# Sections that run gcloud, start TensorFlow or several programs, or wait for a pace.
GCLOUD = ["gcloud", "fanout"]
MACHINES = ["environments", "first-line", "logs", "up", "up-real", "warm-starts", "workers"]
TENSORFLOW = ["gs", "tokens"]
QUICK = [name for name in SECTIONS if name not in {*GCLOUD, *MACHINES, *TENSORFLOW}]
# Environments that download gigabytes are not created for a test.
OWN = ("memory",)


def run_smallest(*names: str) -> dict[str, list[str]]:
    """Run sections in their smallest form in one process; the lines of each one's figures."""
    done = subprocess.run(
        [sys.executable, str(RUN), *names],
        env={**os.environ, "TPUCTL_BENCH_SMALLEST": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, list[str]] = {}
    for line in done.stderr.splitlines():
        if line.startswith("measuring "):
            figures[line.split()[1]] = []
        elif line.startswith("  "):
            figures[[*figures][-1]].append(line)
    return figures


def check(names: list[str]) -> None:
    figures = run_smallest(*names)
    assert [*figures] == names
    assert all(figures.values()), figures


@pytest.mark.soak
def test_quick_sections_have_figures_in_their_smallest_form() -> None:
    check(QUICK)


@pytest.mark.soak
def test_sections_with_machines_have_figures_in_their_smallest_form() -> None:
    check(MACHINES)


@pytest.mark.soak
def test_sections_with_gcloud_have_figures_in_their_smallest_form() -> None:
    require_gcloud()
    check(GCLOUD)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_sections_with_tensorflow_have_figures_in_their_smallest_form() -> None:
    check(TENSORFLOW)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_section_with_own_environments_has_figures_in_its_smallest_form() -> None:
    if not all(Environments().is_installed(kind) for kind in (LOWERING, COMPILER)):
        pytest.skip("needs missing environments; create them with: make bench ONLY=memory")
    check([*OWN])


def test_every_section_is_tested() -> None:
    tested = [*QUICK, *GCLOUD, *MACHINES, *TENSORFLOW, *OWN]
    assert sorted(tested) == sorted(SECTIONS | LONG)


def fine() -> Iterator[Figure]:
    yield Figure("latency of this", "17 ms")


def raises() -> Iterator[Figure]:
    yield Figure("what came before", "23 ms")
    raise TypeError("not a path")


def admits_failure() -> Iterator[Figure]:
    yield Figure("throughput of that", "exit code 3", has_failed=True)


MEASURES = {"first": raises, "second": admits_failure, "third": fine}


def test_failed_section_keeps_figures_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    sections = {name: Section(measure, "") for name, measure in MEASURES.items()}
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
    sections = {"first": Section(raises, ""), "third": Section(fine, "")}
    assert main(["third"], sections) == 0
    assert "failed" not in capsys.readouterr().out


def test_section_whose_module_cannot_be_imported_fails_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tests.benchmarks.commands", None)  # as an import fails
    assert main(["help", "fine"], {**SECTIONS, "fine": Section(fine, "")}) == 1
    output = capsys.readouterr().out
    assert "latency of this" in output
    assert "failed: help: ModuleNotFoundError" in output


def test_unknown_section_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"], SECTIONS) == 2
    assert "no such benchmark: nothing" in capsys.readouterr().out


def meets_goals() -> Iterator[Figure]:
    yield Figure("ours", "1 s", "0.5 × theirs", goal("0.8 × theirs", is_met=True))
    yield Figure("a|b", "3 s", "3 × theirs", goal("2 × theirs", is_met=False))


def test_whole_run_writes_page_with_date_machine_and_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"speed": Section(meets_goals, "Ours compared with theirs.")}
    page = tmp_path / "benchmarks.md"
    assert main([], sections, page) == 0
    lines = page.read_text("utf-8").splitlines()
    heading = lines.index("## speed")
    assert lines[heading + 2 :] == [
        "Ours compared with theirs.",
        "",
        "| what | measured | ratio | goal | met |",
        "| --- | --- | --- | --- | --- |",
        "| ours | 1 s | 0.5 × theirs | 0.8 × theirs | yes |",
        "| a\\|b | 3 s | 3 × theirs | 2 × theirs | **no** |",
    ]
    facts = dict(line.strip("| ").split(" | ", 1) for line in lines[:heading] if "|" in line)
    assert datetime.now(UTC) - datetime.fromisoformat(facts["Date"] + "T00:00Z") < timedelta(days=2)
    assert facts["Machine"].startswith(f"{os.cpu_count()} cores of ")
    assert facts["System"].startswith(platform.system())
    for version in (f"Python {platform.python_version()}", f"tpuctl {__version__}", "asyncssh "):
        assert version in facts["Versions"]
    assert platform.node() not in page.read_text("utf-8")


def test_page_says_what_failed_without_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {name: Section(measure, "") for name, measure in MEASURES.items()}
    page = tmp_path / "benchmarks.md"
    assert main([], sections, page) == 1
    lines = page.read_text("utf-8").splitlines()
    assert "| what came before | 23 ms |  |  |  |" in lines
    assert "| the rest of this section | failed | TypeError |  |  |" in lines
    assert "| throughput of that | failed |  |  |  |" in lines
    assert "| latency of this | 17 ms |  |  |  |" in lines


def test_page_is_written_by_complete_runs_only() -> None:
    assert page_to_write([], is_smallest=False) == PAGE
    assert page_to_write([], is_smallest=True) is None
    assert page_to_write(["help"], is_smallest=False) is None
