"""docs/benchmarks.md: the figures of a complete run, with its date, machine and versions."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.figures import Figure
from tpuctl.catalog import runtimes
from tpuctl.version import __version__

LIBRARIES = ("asyncssh", "cryptography", "google-cloud-tpu", "grpcio", "pydantic", "rich", "typer")
HEAD = """# Benchmarks

<!-- Written by `make bench`: change tests/benchmarks instead. -->

What tpuctl costs in time, compared with other ways to do the same on the
[local cloud](local-cloud.md): both sides run on one computer, one after the other. Compare the
ratios; the seconds depend on the computer. Goals are the project's own, and a missed one is listed
like any other figure. `make bench` in a checkout measures everything again and rewrites this page;
with `ONLY=` and the name of a section it measures only that one, and prints it. Comparisons
that were made once have their own dates: [with scripts](from-gcloud.md#how-long-they-take) of
gcloud commands, and [of the bundled job](pretraining/speed.md) with other libraries.
"""
NOT_MEASURED = "Not measured in the last complete run."
NOTHING_MEASURED = "No complete run has been recorded yet.\n"


@dataclass(frozen=True)
class Result:
    """The figures of one section, and the type of the error that ended it, if any."""

    figures: Sequence[Figure]
    error: str = ""


def page(
    descriptions: Mapping[str, str], results: Mapping[str, Result], now: datetime | None = None
) -> str:
    """The page in Markdown; sections without a result are described only."""
    measured = now or datetime.now(UTC)
    facts = {
        "Date": f"{measured:%Y-%m-%d}",
        "Machine": _machine(),
        "System": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Versions": ", ".join(_versions()),
    }
    parts = [HEAD, _table(("this run", "value"), facts.items()) if results else NOTHING_MEASURED]
    for name, description in descriptions.items():
        parts.append(f"## {name}\n\n{description}\n")
        result = results.get(name)
        parts.append(_section(result) if result is not None else f"{NOT_MEASURED}\n")
    return "\n".join(parts)


def _section(result: Result) -> str:
    rows = [
        (
            figure.label.strip(),
            # What a failed program printed may contain paths of this machine.
            "failed" if figure.has_failed else figure.value,
            "" if figure.has_failed else figure.comparison,
            *_goal(figure.goal),
        )
        for figure in result.figures
    ]
    if result.error:
        rows.append(("the rest of this section", "failed", result.error, "", ""))
    return _table(("what", "measured", "ratio", "goal", "met"), rows)


def _goal(text: str) -> tuple[str, str]:
    """A goal and its verdict, separately."""
    limit, _, verdict = text.partition(": ")
    return limit, {"met": "yes", "MISSED": "**no**"}.get(verdict, verdict)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _machine() -> str:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores of {_processor()}, {memory / 1e9:.0f} GB of memory"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _versions() -> list[str]:
    libraries = [f"{name} {version(name)}" for name in LIBRARIES]
    return [
        f"tpuctl {__version__}{_commit()}",
        f"Python {platform.python_version()}",
        f"gcloud {_gcloud()}",
        f"TensorFlow {runtimes()[0].tensorflow}",
        *libraries,
    ]


def _commit() -> str:
    """The commit of this checkout, if it is one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({done.stdout.strip()})"


@cache
def _gcloud() -> str:
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return "not installed"
    command = [gcloud, "version", "--format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["Google Cloud SDK"])
