"""What Tab offers: names from the catalog, the templates, stack files nearby, and `seen`.

Every function here answers at once, from this machine alone, and never fails: it is called while
somebody types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from tpuctl.cli.completion.seen_names import SeenStack

__all__ = [
    "complete_capacities",
    "complete_jobs",
    "complete_projects",
    "complete_regions",
    "complete_runtimes",
    "complete_stacks",
    "complete_templates",
    "complete_types",
    "complete_workers",
    "complete_zones",
]

Offer = str | tuple[str, str]  # a word, with a few words about it
Complete = Callable[[typer.Context, str], list[Offer]]

STACK_LINE = re.compile(r"""(?m)^stack:\s*["']?([a-z][-a-z0-9]*)""")
PROJECT_LINE = re.compile(r"""(?ms)^project:.*?\bid:\s*["']?([a-z][-a-z0-9]+)""")
TYPE_LINE = re.compile(r"""\btype:\s*["']?([\w-]+)""")
READ_AT_MOST = 64 * 1024
FOLDERS_AT_MOST = 200


def _never_failing(offers: Callable[[typer.Context, str], Iterable[Offer]]) -> Complete:
    @wraps(offers)
    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        try:
            found = list(offers(ctx, incomplete))
        except Exception:  # an error would stand in the middle of what is being typed
            return []
        return [one for one in found if _word(one).startswith(incomplete)]

    return complete


def _word(offer: Offer) -> str:
    return offer if isinstance(offer, str) else offer[0]


@_never_failing
def complete_types(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """TPU types: those of the zone that is named already, else all."""
    from tpuctl.catalog import accelerator_types

    zone = ctx.params.get("zone")
    for one in accelerator_types().values():
        if not isinstance(zone, str) or not zone or zone in one.zones:
            yield one.name, f"{one.chips} chip{'' if one.chips == 1 else 's'}"


@_never_failing
def complete_zones(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Zones: those that offer the type that is named already, else all."""
    from tpuctl.catalog import accelerator_types, zones

    known = accelerator_types()
    wanted = known.get(next((ctx.params[one] for one in _TYPES if ctx.params.get(one)), ""))
    return zones() if wanted is None else wanted.zones


_TYPES = ("type", "tpu_type", "accelerator")  # what parameters of TPU types are called


@_never_failing
def complete_regions(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    from tpuctl.catalog import regions

    return regions()


@_never_failing
def complete_runtimes(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    from tpuctl.catalog import runtimes

    for one in runtimes():
        yield one.version, f"TensorFlow {one.tensorflow}" if one.tensorflow else ""


@_never_failing
def complete_templates(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    from tpuctl.assets import templates

    return sorted(path.stem for path in (templates() / "stacks").glob("*.yaml"))


@_never_failing
def complete_capacities(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    return "on-demand", "spot", "reserved", "flex-start"


@_never_failing
def complete_stacks(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Stacks of stack files here and one folder away, and those that commands came across."""
    offers = dict(_nearby())
    for one in _seen(ctx):
        offers.setdefault(one.name, one.project)
    yield from offers.items()


@_never_failing
def complete_projects(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Projects of the same stacks; only that of the stack which is named already."""
    stack = ctx.params.get("stack")
    pairs = [*_nearby(), *((one.name, one.project) for one in _seen(ctx))]
    return dict.fromkeys(where for name, where in pairs if where and stack in (None, "", name))


@_never_failing
def complete_jobs(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Jobs of the stack file's stack, the latest first; their last word too, once begun."""
    stack = _stack_in(Path(ctx.find_root().params.get("stack_file") or "tpuctl.yaml"))
    for one in _seen(ctx):
        if stack is None or one.name == stack[0]:
            yield from one.jobs
            if incomplete and not incomplete[0].isdigit():
                yield from (job.rpartition("-")[2] for job in one.jobs)


@_never_failing
def complete_workers(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Numbers of the workers that the stack file's type has."""
    from tpuctl.catalog import accelerator_types

    path = Path(ctx.find_root().params.get("stack_file") or "tpuctl.yaml")
    known = accelerator_types()
    workers = [known[word].workers for word in TYPE_LINE.findall(_text(path)) if word in known]
    return map(str, range(max(workers, default=1)))


def _seen(ctx: typer.Context) -> Iterator[SeenStack]:
    """Those of the cloud that is spoken to."""
    from tpuctl.cli.completion.seen_names import seen_stacks

    cloud: Any = ctx.find_root().params.get("cloud") or "google"
    cloud = getattr(cloud, "value", cloud)
    return (one for one in seen_stacks() if one.cloud == cloud)


def _nearby() -> Iterator[tuple[str, str]]:
    here = Path()
    folders = [here, Path("..")]
    for parent in (here, Path("..")):
        inside = (one for one in parent.iterdir() if one.is_dir() and one.name[0] != ".")
        folders += [one for _, one in zip(range(FOLDERS_AT_MOST), inside, strict=False)]
    for folder in folders:
        stack = _stack_in(folder / "tpuctl.yaml")
        if stack is not None:
            yield stack


def _stack_in(path: Path) -> tuple[str, str] | None:
    """The stack's name and its project's id, read without knowing all of YAML: that is quick."""
    text = _text(path)
    name, project = STACK_LINE.search(text), PROJECT_LINE.search(text)
    return (name[1], project[1] if project else "") if name else None


def _text(path: Path) -> str:
    """What the file says, without its comments."""
    if not path.is_file():  # a pipe would wait for who writes into it
        return ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return re.sub("#.*", "", file.read(READ_AT_MOST))
    except OSError:
        return ""
