"""Completion candidates: names from the catalog, templates, nearby stack files and the history.

Every function here uses local data only and returns quickly. Typer filters the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tpuctl.cli.completion.name_history import RememberedStack

Candidate = str | tuple[str, str]  # a word, with a few words about it

STACK_LINE = re.compile(r"""(?m)^stack:\s*["']?([a-z][-a-z0-9]*)""")
PROJECT_LINE = re.compile(r"""(?ms)^project:(?:[ \t]*["']?|.*?\bid:\s*["']?)([a-z][a-z0-9.:-]+)""")
TYPE_LINE = re.compile(r"""\b(?:type|tpu):[ \t]*["']?([\w-]+)""")
SLICES_LINE = re.compile(r"\bslices:\s*([1-9][0-9]?)\b")
MAX_READ_BYTES = 64 * 1024
MAX_FOLDERS = 200


def complete_types(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """TPU types: those of the zone already on the command line, otherwise all.

    After another name of a generation, as in `v5e-`, they have that name.
    """
    from tpuctl.catalog import accelerator_types, canonical_type

    zone = ctx.params.get("zone")
    prefix, dash, _ = incomplete.rpartition("-")
    generation = canonical_type(prefix)
    for accelerator in accelerator_types().values():
        if not isinstance(zone, str) or not zone or zone in accelerator.zones:
            name = accelerator.name
            if dash and accelerator.generation == generation:
                name = f"{prefix}-{name.rpartition('-')[2]}"
            yield name, f"{accelerator.chips} chip{'' if accelerator.chips == 1 else 's'}"


def complete_zones(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    """Zones: those that offer the type already on the command line, otherwise all."""
    from tpuctl.catalog import type_named, zones

    accelerator = type_named(
        next((ctx.params[parameter] for parameter in _TYPES if ctx.params.get(parameter)), "")
    )
    return zones() if accelerator is None else accelerator.zones


_TYPES = ("type_name", "type_too", "accelerator")  # what parameters of TPU types are called


def complete_regions(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    from tpuctl.catalog import regions

    return regions()


def complete_templates(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    from tpuctl.assets import template_names

    return template_names()


def complete_capacities(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    return "on-demand", "spot", "reserved", "flex-start"


def complete_stacks(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """Stacks of stack files in this and neighboring folders, and of the history."""
    offers = dict(_nearby_stacks())
    for stack in _remembered_stacks(ctx):
        offers.setdefault(stack.name, stack.project)
    yield from offers.items()


def complete_projects(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    """Projects of the same stacks; only that of a stack already on the command line."""
    stack = ctx.params.get("stack")
    pairs = [*_nearby_stacks(), *((stack.name, stack.project) for stack in _remembered_stacks(ctx))]
    return dict.fromkeys(where for name, where in pairs if where and stack in (None, "", name))


def complete_jobs(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """Jobs of the stack file's stack, newest first; also their last words, once typing began."""
    stack = _stack_in(_stack_file(ctx))
    for entry in _remembered_stacks(ctx):
        if stack is None or entry.name == stack[0]:
            yield from entry.jobs
            if incomplete and not incomplete[0].isdigit():
                yield from (job.rpartition("-")[2] for job in entry.jobs)


def complete_workers(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    """The names of the workers of the stack file's type and slices."""
    from tpuctl.catalog import type_named
    from tpuctl.model.workers.worker_numbering import WorkerNumbering

    text = _text(_stack_file(ctx))
    workers = [
        accelerator.workers
        for word in TYPE_LINE.findall(text)
        if (accelerator := type_named(word)) is not None
    ]
    slices = int(match[1]) if (match := SLICES_LINE.search(text)) else 1
    numbering = WorkerNumbering(slices * max(workers, default=1), slices)
    return map(numbering.name, range(numbering.workers))


def _stack_file(ctx: typer.Context) -> Path:
    from tpuctl.model.stack.stack_search import find_stack_file

    path = ctx.find_root().params.get("stack_file")
    return Path(path) if path else find_stack_file(Path())


def _remembered_stacks(ctx: typer.Context) -> Iterator[RememberedStack]:
    """The remembered stacks of the selected cloud."""
    from tpuctl.cli.completion.name_history import remembered_stacks

    cloud = ctx.find_root().params.get("cloud") or "google"
    return (stack for stack in remembered_stacks() if stack.cloud == cloud)


def _nearby_stacks() -> Iterator[tuple[str, str]]:
    here = Path()
    folders = [here, Path("..")]
    for parent in (here, Path("..")):
        inside = (path for path in parent.iterdir() if path.is_dir() and path.name[0] != ".")
        folders += [path for _, path in zip(range(MAX_FOLDERS), inside, strict=False)]
    for folder in folders:
        stack = _stack_in(folder / "tpuctl.yaml")
        if stack is not None:
            yield stack


def _stack_in(path: Path) -> tuple[str, str] | None:
    """The stack's name and project id, by regular expressions: importing YAML is slow."""
    text = _text(path)
    name, project = STACK_LINE.search(text), PROJECT_LINE.search(text)
    return (name[1], project[1] if project else "") if name else None


def _text(path: Path) -> str:
    """The file's text without comments; empty if it cannot be read."""
    if not path.is_file():  # reading a pipe would block
        return ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return re.sub("#.*", "", file.read(MAX_READ_BYTES))
    except OSError:
        return ""
