"""The text of a stack file: where each key stands, and what is wrong with it in our words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tpuctl.catalog import nearest
from tpuctl.errors import Diagnostic, InvalidStack
from tpuctl.model.schema import NOT_YET, StackFile

__all__ = ["StackText", "read_stack_text"]

EXAMPLES = {
    "project": "Add\n    project: {id: my-project}",
    "project.id": "Add the id of your Google Cloud project.",
    "tpu": "Add\n    tpu: {type: v2-8}",
    "tpu.type": "Add a type, for example v2-8. All of them:\n    tpuctl types",
}
FORMATS = {
    "stack": "Small letters, digits and hyphens, at most 26, a letter first.",
    "project.id": "6 to 30 small letters, digits and hyphens, as the Cloud console shows it.",
}
UNION_SIDES = ("literal['auto','all']", "tuple[int, ...]")  # parts of pydantic's locations


@dataclass(frozen=True)
class StackText:
    """A stack file as written."""

    shown: str  # the path as the user would type it
    content: dict[str, Any]
    lines: dict[str, int]  # by dotted key: "tpu.zones.0"

    def where(self, dotted: str) -> str:
        """file:line of a key, or of the nearest key around it that is written down."""
        while dotted:
            if dotted in self.lines:
                return f"{self.shown}:{self.lines[dotted]}"
            dotted = dotted.rpartition(".")[0]
        return self.shown

    def validate(self) -> StackFile:
        """The file's fields. Raises InvalidStack with every problem that the schema finds."""
        problems = list(self._not_yet())
        supported = {
            key: {inner: one for inner, one in value.items() if f"{key}.{inner}" not in NOT_YET}
            if isinstance(value, dict)
            else value
            for key, value in self.content.items()
            if key not in NOT_YET
        }
        try:
            file = StackFile.model_validate(supported)
        except ValidationError as error:
            problems += [self._explain(dict(found)) for found in error.errors()]
        if problems:
            unique = {(one.where, one.summary, one.detail): one for one in problems}
            raise InvalidStack(list(unique.values()))
        return file

    def _not_yet(self) -> Iterator[Diagnostic]:
        for dotted in sorted(NOT_YET):
            value: Any = self.content
            for part in dotted.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value not in (None, False):
                yield Diagnostic(
                    "Not available yet",
                    f"{dotted} is not supported by this version of tpuctl",
                    "Take the key out: it would not be acted on.",
                    self.where(dotted),
                )

    def _explain(self, found: dict[str, Any]) -> Diagnostic:
        steps = [part for part in found["loc"] if part not in UNION_SIDES]
        dotted = ".".join(str(part) for part in steps)
        where = self.where(dotted)
        kind = found["type"]
        if kind == "extra_forbidden":
            known = _keys_at(steps[:-1])
            like = nearest(str(steps[-1]), known, 1)
            hint = f"Did you mean {like[0]}?" if like else f"Known here: {', '.join(known)}."
            return Diagnostic("Unknown key", f"{dotted} is not a key of a stack file", hint, where)
        if kind == "missing":
            return Diagnostic(
                "Missing key", f"{dotted} is required", EXAMPLES.get(dotted, ""), where
            )
        if kind == "literal_error":
            hint = f"Use {found['ctx']['expected']}."
            if dotted == "tpu.kind" and found["input"] == "node":
                hint = "TPU nodes are not supported by this version; use\n    kind: vm"
            detail = f"{dotted} cannot be {found['input']!r}"
            return Diagnostic("Invalid value", detail, hint, where)
        detail = f"{dotted}: {found['msg'].lower()} (found {found['input']!r})"
        if dotted in FORMATS:
            detail = f"{dotted} cannot be {found['input']!r}"
        return Diagnostic("Invalid value", detail, FORMATS.get(dotted, ""), where)


def read_stack_text(path: Path) -> StackText:
    """Read and parse. Raises InvalidStack."""
    shown = _shown(path)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        hint = "Write one with\n    tpuctl init\nor name another with --stack-file."
        raise _invalid("No stack file", f"{shown} does not exist", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid("Stack file cannot be read", f"{shown}: {error}", where=shown) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise _invalid(
            "Stack file is not valid YAML",
            getattr(error, "problem", None) or str(error),
            "Check indentation, colons and brackets around that line.",
            f"{shown}:{mark.line + 1}" if mark else shown,
        ) from None
    if not isinstance(content, dict):
        raise _invalid(
            "Stack file is not a mapping",
            f"{shown} has no keys",
            "It needs at least\n    project: {id: my-project}\n    tpu: {type: v2-8}",
            shown,
        )
    return StackText(shown, content, dict(_lines(root)))


def _invalid(summary: str, detail: str, hint: str = "", where: str = "") -> InvalidStack:
    return InvalidStack([Diagnostic(summary, detail, hint, where)])


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


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


def _keys_at(steps: list[Any]) -> list[str]:
    """The keys that the schema knows under a section."""
    model: type[BaseModel] = StackFile
    for step in steps:
        if step not in model.model_fields:
            return []
        annotation = model.model_fields[step].annotation
        sections = [
            one
            for one in (annotation, *get_args(annotation))
            if isinstance(one, type) and issubclass(one, BaseModel)
        ]
        if not sections:
            return []
        model = sections[0]
    return sorted(model.model_fields)
