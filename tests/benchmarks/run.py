"""The benchmarks, printed as ratios within one run on one machine: `make bench [ONLY=names]`.

A complete run also writes docs/benchmarks.md; one with ONLY or SMALLEST does not.
Goals are printed next to the figures; nothing here fails because a machine is slow. A section
that fails is reported immediately and at the end, does not affect the others' figures, and sets
exit code 1. With SMALLEST=1 everything is done once and as small as possible.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import IS_SMALLEST, Figure
from tests.benchmarks.page import Result, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Section:
    """Figures that are measured together; `description` says what is compared, and how."""

    measure: Callable[[], Iterator[Figure]]
    description: str


def _section(module: str, function: str, description: str) -> Section:
    """A section whose module is imported when it runs: an import error fails it alone."""

    def measure() -> Iterator[Figure]:
        yield from getattr(import_module(f"tests.benchmarks.{module}"), function)()

    return Section(measure, description)


SECTIONS: Mapping[str, Section] = {
    "help": _section(
        "commands",
        "help_time",
        "The start of the program: `tpuctl --help`, `tpuctl check` of a small script, an empty "
        "Python and gcloud's help.",
    ),
    "check": _section(
        "check_speed",
        "check_speed",
        "`tpuctl check` of a script that imports a package of ten modules, compared with an empty "
        "Python and with `tpuctl --version`; and of a folder of twenty such scripts, compared with "
        "one of them.",
    ),
    "check-truth": _section(
        "check_truth",
        "check_truth",
        "How many errors of labeled scripts `tpuctl check` finds, and how many of its reports are "
        "right. Not a time.",
    ),
    "up": _section(
        "ups",
        "up_time",
        "`tpuctl up` and `down` of each kind of stack, compared with their critical path: the time "
        "that Google's operations need along the longest chain of steps that wait for each other. "
        "The operations of the local cloud take seconds instead of minutes here, so what tpuctl "
        "adds weighs more than on Google Cloud. The last figures include the start of the program.",
    ),
    "hunt": _section(
        "hunts",
        "hunt",
        "How much of the time in which any of three zones has room for a spot TPU is used by "
        "tpuctl, and by two simple strategies: 72 hours of a made-up trace, on the local cloud. "
        "Time passes by Google's usual durations and where tpuctl waits, so that the speed of this "
        "computer does not matter. Work after the last checkpoint, half-hourly, is lost.",
    ),
    "gcloud": _section(
        "gcloud",
        "gcloud_time",
        "Listing and deleting a TPU VM, as whole programs, with tpuctl and with gcloud. `status` "
        "also lists the rest of the stack, and `down` deletes it.",
    ),
    "scale": _section(
        "scale",
        "scale_time",
        "`status` and `orphans` in a project with three hundred stacks, with the local cloud next "
        "door and with each of its calls delayed as by a network.",
    ),
    "gs": _section(
        "gs",
        "gs_speed",
        "Records that TensorFlow writes to and reads from `gs://` on the local cloud, compared "
        "with plain files and with plain HTTP.",
    ),
    "first-line": _section(
        "jobs",
        "first_line",
        "From `run` to the first line of the log on one worker of the local cloud, compared with "
        "one command through `ssh`.",
    ),
    "bundle": _section(
        "bundle",
        "second_bundle",
        "What a run uploads of a folder of 200 MB when one file has changed, compared with `tar`, "
        "`gzip` and an upload of everything.",
    ),
    "fanout": _section(
        "fanout",
        "fanout",
        "`tpuctl run` on up to 256 workers of the local cloud, compared with gcloud's `scp` and "
        "`ssh` to the same machines. All machines share this computer, so their work counts as "
        "much as the client's; the client's CPU time is given separately.",
    ),
    "workers": _section(
        "workers",
        "first_line_of_workers",
        "From the start of the program `tpuctl run` to the first line of the log on 256 workers "
        "with processors of their own, 50 ms away. The workers are simulated: a server on this "
        "computer answers SSH as 256 supervisors would, delays each message by 25 ms, and takes "
        "0.3 s for what a worker does until its job is ready. It shares the processors with the "
        "client; nothing is subtracted for that. The calls to Google's APIs are not delayed.",
    ),
    "warm-starts": _section(
        "warm_starts",
        "warm_starts",
        "From `run` to the first step of a JAX job on four new workers of the local cloud: without "
        "`job.cache`, and with it for the first and for the next job. All machines share this "
        "computer's processors, which compile for a CPU; nothing that earlier jobs downloaded is "
        "left on them.",
    ),
    "environments": _section(
        "environments",
        "environments",
        "Installing some 110 MB of packages from an index on this computer: with uv, and with pip "
        "as before. Cold: nothing is cached; of 16 workers, one installs, and the others unpack "
        "what it stored in the bucket. Warm: the machine has the environment. All machines share "
        "this computer's processors.",
    ),
    "logs": _section(
        "logs",
        "logs",
        "A million lines through `tpuctl logs -f`, compared with `ssh cat`, and the delay between "
        "printing a line on a worker and showing it.",
    ),
    "tokens": _section(
        "jobs", "tokens", "The training speed of the bundled job on a machine of the local cloud."
    ),
}
# They take long, and run only when they are named.
LONG: Mapping[str, Section] = {
    "memory": _section("tpu_memory", "memory", "The memory of the bundled job on a TPU."),
    "up-real": _section("ups", "up_real_time", "`up` and `down` at the pace of the real cloud."),
}


def page_to_write(names: Sequence[str], *, is_smallest: bool) -> Path | None:
    """The page, if this is a complete run whose figures mean something."""
    return None if names or is_smallest else PAGE


def main(
    names: Sequence[str],
    sections: Mapping[str, Section] = SECTIONS | LONG,
    page_file: Path | None = None,
) -> int:
    """Run these sections, or all that are not long; return the exit code.

    Writes the page to `page_file`, unless interrupted.
    """
    unknown = [name for name in names if name not in sections]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(sections)}")
        return 2
    table = Table("what", "measured", "ratio", "goal", title="Benchmarks", title_justify="left")
    failures: list[str] = []
    results: dict[str, Result] = {}
    try:
        for name in names or [name for name in sections if name not in LONG]:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            figures: list[Figure] = []
            error_type = ""
            try:
                for figure in sections[name].measure():
                    figures.append(figure)
                    table.add_row(figure.label, figure.value, figure.comparison, figure.goal)
                    line = f"{figure.label}: {figure.value} {figure.comparison}"
                    print(f"  {line}", file=sys.stderr, flush=True)
                    if figure.has_failed:
                        failures.append(f"{name}: {line.strip()}")
            except Exception as error:
                traceback.print_exc()
                error_type = type(error).__name__
                failures.append(f"{name}: {error_type}: {error}")
            results[name] = Result(figures, error_type)
    finally:  # also when interrupted: the measurements took long
        Console().print(table)
    if page_file is not None:
        descriptions = {name: sections[name].description for name in sections if name not in LONG}
        page_file.write_text(page(descriptions, results), "utf-8")
    for failure in failures:
        print(f"failed: {failure}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], page_file=page_to_write(sys.argv[1:], is_smallest=IS_SMALLEST)))
