"""Sweeps: jobs of the same script that differ in the values of some options."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuctl.errors import Usage

MAX_JOBS = 100  # of one sweep; the client stays attached until the last one has ended
NAME = re.compile(r"[A-Za-z][\w.-]*")
EXAMPLE = "For example\n    tpuctl run train.py --each lr=1e-3,1e-4"
SweepValues = Mapping[str, str]  # the values of one job by the name of the option


@dataclass(frozen=True)
class SweepEstimate:
    """How long the jobs of a sweep may take; None is unknown."""

    count: int
    per_hour: float | None  # US dollars, for all of the stack's resources, and further TPUs
    seconds_each: float | None  # what the same program took before
    timeout: float | None  # seconds that no job exceeds
    tpus: int = 1  # that run jobs at the same time


def parse_sweep(options: Sequence[str], arguments: Sequence[str]) -> list[SweepValues]:
    """The values of each job, from the `NAME=VALUE,VALUE` of each --each: every combination, the
    last option varying fastest. Values with commas are quoted as in CSV.

    `arguments` are the script's own. Raises Usage.
    """
    values: dict[str, list[str]] = {}
    for option in options:
        name, equals, text = option.removeprefix("--").partition("=")
        if not equals or not NAME.fullmatch(name):
            raise _invalid(f"{option!r} is not NAME=VALUE,VALUE")
        if name in values:
            raise _invalid(f"{name} is passed twice; separate its values by commas")
        values[name] = _values(name, text)
    return combinations(values, arguments)


def combinations(
    values: Mapping[str, Sequence[str]], arguments: Sequence[str] = ()
) -> list[SweepValues]:
    """Every combination of the options' values, the last option varying fastest. Raises Usage."""
    for name in values:
        if any(argument.partition("=")[0] == f"--{name}" for argument in arguments):
            raise _invalid(f"the script's arguments contain --{name} as well")
    jobs: list[SweepValues] = [
        dict(zip(values, job, strict=True)) for job in itertools.product(*values.values())
    ]
    if not jobs:
        raise _invalid("there are no values")
    if len(jobs) > MAX_JOBS:
        counts = " x ".join(f"{len(options)} of {name}" for name, options in values.items())
        raise _invalid(
            f"{counts} are {len(jobs)} jobs, and the maximum is {MAX_JOBS}",
            hint="Pass fewer values.",
        )
    return jobs


def describe_values(values: SweepValues) -> str:
    """`lr=1e-3 batch=64`."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def _values(name: str, text: str) -> list[str]:
    try:
        values = next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise _invalid(f"{name}={text}: {error}") from None
    if "" in values or not values:
        raise _invalid(f"{name}={text} has an empty value")
    repeated = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    if repeated:
        raise _invalid(f"{name}={text} repeats {repeated[0]}")
    return values


def _invalid(detail: str, hint: str = EXAMPLE) -> Usage:
    return Usage("Invalid sweep", detail, hint=hint, where="--each")
