"""The benchmarks, printed as ratios within one run on one machine: `make bench [ONLY=names]`.

Goals are printed next to the figures; nothing here fails because a machine is slow. A section
that fails is reported immediately and at the end, does not affect the others' figures, and sets
exit code 1. With SMALLEST=1 everything is done once and as small as possible.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module

from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import Figure

__all__ = ["LONG", "SECTIONS", "Section", "main"]

Section = Callable[[], Iterator[Figure]]


def _section(module: str, function: str) -> Section:
    """A section whose module is imported when it runs: an import error fails it alone."""

    def measured() -> Iterator[Figure]:
        yield from getattr(import_module(f"tests.benchmarks.{module}"), function)()

    return measured


SECTIONS: Mapping[str, Section] = {
    "help": _section("commands", "help_time"),
    "check": _section("check_speed", "check_speed"),
    "check-truth": _section("check_truth", "check_truth"),
    "up": _section("ups", "up_time"),
    "gcloud": _section("scripts", "gcloud_time"),
    "scripts": _section("scripts", "scripts_time"),
    "scale": _section("scale", "scale_time"),
    "storage": _section("testbench_speed", "storage_speed"),
    "gs": _section("gs", "gs_speed"),
    "first-line": _section("jobs", "first_line"),
    "bundle": _section("bundle", "second_bundle"),
    "fanout": _section("fanout", "fanout"),
    "logs": _section("logs", "logs"),
    "tokens": _section("jobs", "tokens"),
}
# They take long, and run only when they are named.
LONG: Mapping[str, Section] = {
    "memory": _section("tpu_memory", "memory"),
    "preparation": _section("preparation", "preparation"),
    "pretraining": _section("pretraining", "pretraining"),
    "up-real": _section("ups", "up_real_time"),
}


def main(names: Sequence[str], sections: Mapping[str, Section] = SECTIONS | LONG) -> int:
    """Run these sections, or all that are not long; return the exit code."""
    unknown = [name for name in names if name not in sections]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(sections)}")
        return 2
    table = Table("what", "measured", "ratio", "goal", title="Benchmarks", title_justify="left")
    failures: list[str] = []
    try:
        for name in names or [name for name in sections if name not in LONG]:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            try:
                for figure in sections[name]():
                    table.add_row(figure.label, figure.value, figure.comparison, figure.goal)
                    line = f"{figure.label}: {figure.value} {figure.comparison}"
                    print(f"  {line}", file=sys.stderr, flush=True)
                    if figure.has_failed:
                        failures.append(f"{name}: {line.strip()}")
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{name}: {type(error).__name__}: {error}")
    finally:  # also when interrupted: the measurements took long
        Console().print(table)
    for failure in failures:
        print(f"failed: {failure}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
