"""A stack: the stack file read, checked against the catalogue, with every default resolved."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tpuctl.catalog import (
    AcceleratorType,
    Price,
    Runtime,
    accelerator_type,
    accelerator_types,
    nearest,
    node_price,
    region_of,
    runtime,
    runtime_for,
    runtimes,
    zones,
)
from tpuctl.errors import Diagnostic, InvalidStack
from tpuctl.model.names import STACK_NAME, Names
from tpuctl.model.schema import NOT_YET, StackFile

__all__ = ["Stack", "load_stack"]


@dataclass(frozen=True)
class Stack:
    """A valid stack. Nothing here is "auto" any more, but for the network's name."""

    path: Path
    file: StackFile
    names: Names
    accelerator: AcceleratorType
    runtime: Runtime
    zone: str
    bucket: str
    bucket_location: str
    user: str

    @property
    def name(self) -> str:
        return self.names.stack

    @property
    def project(self) -> str:
        return self.names.project

    @property
    def is_spot(self) -> bool:
        return self.file.tpu.capacity == "spot"

    @property
    def service_account(self) -> str:
        return self.file.tpu.service_account or self.names.service_account_email

    @property
    def makes_service_account(self) -> bool:
        return self.file.tpu.service_account is None

    @property
    def price(self) -> Price | None:
        return node_price(self.accelerator, self.zone, spot=self.is_spot)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def job_workers(self) -> tuple[int, ...]:
        """The workers that start the script.

        Multi-host TensorFlow is driven from worker 0 alone; everything else starts everywhere.
        """
        wanted = self.file.job.workers
        everyone = tuple(range(self.accelerator.workers))
        if wanted == "all":
            return everyone
        if wanted == "auto":
            return (0,) if self.runtime.tensorflow else everyone
        return tuple(wanted)


def load_stack(path: Path) -> Stack:
    """Read and check a stack file. Raises InvalidStack with every problem found."""
    shown = _shown(path)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidStack(
            [
                Diagnostic(
                    "No stack file",
                    f"{shown} does not exist",
                    "Write one with\n    tpuctl init\nor name another with --stack-file.",
                )
            ]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStack(
            [Diagnostic("Stack file cannot be read", f"{shown}: {error}", where=shown)]
        ) from error
    lines, content = _parse(shown, text)
    problems = list(_not_yet(content, lines, shown))
    try:
        file = StackFile.model_validate(content)
    except ValidationError as error:
        problems += [_explain(dict(found), lines, shown) for found in error.errors()]
        raise InvalidStack(_without_repeats(problems)) from None
    problems += _against_catalog(file, lines, shown)
    name = file.stack or _slug(path.resolve().parent.name)
    if problems:
        raise InvalidStack(problems)
    names = Names(name, file.project.id)
    accelerator = accelerator_type(file.tpu.type)
    assert accelerator is not None
    chosen = runtime_for(accelerator) if file.tpu.runtime == "auto" else runtime(file.tpu.runtime)
    assert chosen is not None
    zone = file.tpu.zones[0] if file.tpu.zones else _cheapest_zone(accelerator)
    location = file.bucket.location
    return Stack(
        path=path,
        file=file,
        names=names,
        accelerator=accelerator,
        runtime=chosen,
        zone=zone,
        bucket=names.bucket if file.bucket.name == "auto" else file.bucket.name,
        bucket_location=region_of(zone) if location == "auto" else location.lower(),
        user=_user(file.access.user),
    )


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _parse(shown: str, text: str) -> tuple[dict[str, int], dict[str, Any]]:
    """The content, and the line of each dotted key."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{shown}:{mark.line + 1}" if mark else shown
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidStack(
            [
                Diagnostic(
                    "Stack file is not valid YAML",
                    f"{problem}",
                    "Check indentation, colons and brackets around that line.",
                    where,
                )
            ]
        ) from None
    if not isinstance(content, dict):
        raise InvalidStack(
            [
                Diagnostic(
                    "Stack file is empty" if content is None else "Stack file is not a mapping",
                    f"{shown} has no keys",
                    "It needs at least\n    project: {id: my-project}\n    tpu: {type: v2-8}",
                    shown,
                )
            ]
        )
    return dict(_lines(root)), content


def _lines(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, key.start_mark.line + 1
            yield from _lines(value, f"{dotted}.")
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1
            yield from _lines(value, f"{prefix}{index}.")


def _where(dotted: str, lines: dict[str, int], shown: str) -> str:
    """The place of a key, or of the nearest key around it that is written down."""
    while dotted:
        if dotted in lines:
            return f"{shown}:{lines[dotted]}"
        dotted = dotted.rpartition(".")[0]
    return shown


def _not_yet(content: dict[str, Any], lines: dict[str, int], shown: str) -> Iterator[Diagnostic]:
    for dotted in sorted(NOT_YET):
        here: Any = content
        for part in dotted.split("."):
            here = here.get(part) if isinstance(here, dict) else None
        if here not in (None, False):
            yield Diagnostic(
                "Not available yet",
                f"{dotted} is not supported by this version of tpuctl",
                "Take the key out: it would not be acted on.",
                _where(dotted, lines, shown),
            )
            _drop(content, dotted)
        elif dotted in lines:
            _drop(content, dotted)


def _drop(content: dict[str, Any], dotted: str) -> None:
    *parents, leaf = dotted.split(".")
    for part in parents:
        content = content[part]
    content.pop(leaf, None)


def _explain(found: dict[str, Any], lines: dict[str, int], shown: str) -> Diagnostic:
    """One of pydantic's findings in our words."""
XX
    dotted = ".".join(str(part) for part in steps)
    where = _where(dotted, lines, shown)
    kind = found["type"]
    if kind == "extra_forbidden":
        known = _keys_at(steps[:-1])
        like = nearest(str(steps[-1]), known, 1)
        hint = f"Did you mean {like[0]}?" if like else f"Known here: {', '.join(known)}."
        return Diagnostic("Unknown key", f"{dotted} is not a key of the stack file", hint, where)
    if kind == "missing":
        return Diagnostic("Missing key", f"{dotted} is required", _example(dotted), where)
    if kind == "literal_error":
        expected = found["ctx"]["expected"]
        if dotted == "tpu.kind" and found["input"] == "node":
            hint = "TPU nodes are not supported by this version; use kind: vm."
        else:
            hint = f"Use {expected}."
        return Diagnostic("Invalid value", f"{dotted} cannot be {found['input']!r}", hint, where)
    hint = {
        "stack": "Small letters, digits and hyphens, at most 26, a letter first.",
        "project.id": "6 to 30 small letters, digits and hyphens, as the Cloud console shows it.",
    }.get(dotted, "")
    return Diagnostic(
        "Invalid value", f"{dotted}: {found['msg'].lower()} (found {found['input']!r})", hint, where
    )


def _example(dotted: str) -> str:
    return {
        "project": "Add\n    project: {id: my-project}",
        "project.id": "Add the id of your Google Cloud project.",
        "tpu": "Add\n    tpu: {type: v2-8}",
        "tpu.type": "Add a type, for example v2-8; `tpuctl types` lists them.",
    }.get(dotted, "")


def _keys_at(steps: list[Any]) -> list[str]:
    model: Any = StackFile
    for step in steps:
        annotation = model.model_fields[step].annotation if step in model.model_fields else None
        options = [annotation, *get_args(annotation)]
        model = next(
            (one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None
        )
        if model is None:
            return []
    return sorted(model.model_fields)


def _without_repeats(problems: list[Diagnostic]) -> list[Diagnostic]:
    return list({(one.where, one.summary, one.detail): one for one in problems}.values())


def _against_catalog(file: StackFile, lines: dict[str, int], shown: str) -> Iterator[Diagnostic]:
    accelerator = accelerator_type(file.tpu.type)
    where = _where("tpu.type", lines, shown)
    if accelerator is None:
        like = nearest(file.tpu.type, accelerator_types())
        yield Diagnostic(
            "Unknown TPU type",
            f"there is no type {file.tpu.type}",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + "All of them:\n    tpuctl types",
            where,
        )
        return
    if not accelerator.in_tpu_api:
        yield Diagnostic(
            "TPU type outside the TPU API",
            f"{accelerator.name} is offered through Compute Engine or GKE alone",
            "Choose a v2, v3, v4, v5e, v5p or v6e type.",
            where,
        )
        return
    for index, zone in enumerate(file.tpu.zones):
        if zone not in accelerator.zones:
            problem = (
                "unknown zone" if zone not in zones() else f"{accelerator.name} is not offered"
            )
            yield Diagnostic(
                "TPU type not offered in zone",
                f"{zone}: {problem}",
                f"Zones with {accelerator.name}: {', '.join(accelerator.zones)}.",
                _where(f"tpu.zones.{index}", lines, shown),
            )
    if file.tpu.runtime != "auto":
        yield from _runtime_problem(file.tpu.runtime, accelerator, lines, shown)
    elif runtime_for(accelerator) is None:
        yield Diagnostic(
            "No runtime for the type", f"none is known for {accelerator.name}", "", where
        )
    workers = file.job.workers
    if not isinstance(workers, str):
        for worker in workers:
            if not 0 <= worker < accelerator.workers:
                yield Diagnostic(
                    "No such worker",
                    f"{accelerator.name} has workers 0 to {accelerator.workers - 1}, not {worker}",
                    "",
                    _where("job.workers", lines, shown),
                )
    zone = file.tpu.zones[0] if file.tpu.zones else _cheapest_zone(accelerator)
    location = file.bucket.location.lower()
    if location not in ("auto", region_of(zone)) and not file.bucket.allow_egress:
        yield Diagnostic(
            "Bucket outside the TPU's region",
            f"the node is in {region_of(zone)}, the bucket would be in {location}",
            "Leave bucket.location out, or accept charged traffic with\n"
            "    bucket: {allow_egress: true}",
            _where("bucket.location", lines, shown),
        )


def _runtime_problem(
    wanted: str, accelerator: AcceleratorType, lines: dict[str, int], shown: str
) -> Iterator[Diagnostic]:
    fitting = [known.version for known in runtimes() if known.fits(accelerator)]
    where = _where("tpu.runtime", lines, shown)
    known = runtime(wanted)
    if known is None:
        like = nearest(wanted, fitting)
        yield Diagnostic(
            "Unknown runtime",
            f"there is no runtime {wanted}",
            (f"Did you mean {', '.join(like)}?\n" if like else "") + "Or use auto.",
            where,
        )
    elif not known.fits(accelerator):
        yield Diagnostic(
            "Runtime does not fit the type",
            f"{wanted} is not for {accelerator.name}",
            f"Use auto, which is {fitting[0]}." if fitting else "",
            where,
        )


def _cheapest_zone(accelerator: AcceleratorType) -> str:
    def price(zone: str) -> tuple[float, str]:
        known = node_price(accelerator, zone)
        return (known.per_hour if known else float("inf"), zone)

    return min(accelerator.zones, key=price)


def _slug(text: str) -> str:
    """A stack name from a folder's name."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:26].strip("-")
    return slug if re.fullmatch(STACK_NAME, slug) else f"stack-{slug}"[:26].strip("-")


def _user(wanted: str) -> str:
    """A user name that a machine accepts; root may not log in on Google's images."""
    if wanted != "auto":
        return wanted
    try:
        local = getpass.getuser()
    except (OSError, KeyError):  # no entry for this user, as in some containers
        local = "tpuctl"
    slug = re.sub(r"[^a-z0-9_-]", "", local.lower())[:32]
    return slug if slug not in ("", "root") and not slug[0].isdigit() else "tpuctl"
