"""JSON schemas of the output of `--json` and `--events`, generated from their types."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from tpuctl.view.json_lines import ENVELOPE_VERSION
from tpuctl.view.response_models import RESPONSES

__all__ = ["envelope_schema", "events_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
DIAGNOSTIC = {
    "description": "An error or warning: summary, detail, how to fix it, and where.",
    "type": "object",
    "required": ["summary", "detail", "hint", "where"],
    "properties": dict.fromkeys(("summary", "detail", "hint", "where"), TEXT),
}


def envelope_schema() -> dict[str, Any]:
    """The schema of the object that `--json` prints; `$defs` has each command's data by name."""
    from pydantic import TypeAdapter

    definitions: dict[str, Any] = {"diagnostic": DIAGNOSTIC}
    conditions = []
    for command, shapes in sorted(RESPONSES.items()):
        forms = []
        for shape in shapes:
            schema = TypeAdapter(shape).json_schema(ref_template="#/$defs/{model}")
            definitions |= schema.pop("$defs", {})
            forms.append(schema)
        name = f"data of {command}"
        definitions[name] = forms[0] if len(forms) == 1 else {"anyOf": forms}
        allowed = {"anyOf": [{"$ref": f"#/$defs/{name}".replace(" ", "%20")}, {"type": "null"}]}
        conditions.append(
            {
                "if": {"properties": {"command": {"const": command}, "status": {"const": "ok"}}},
                "then": {"properties": {"data": allowed}},
            }
        )
    return {
        "$schema": DIALECT,
        "title": "The envelope of tpuctl --json",
        "type": "object",
        "required": ["version", "command", "status", "exit_code", "data", "diagnostics"],
        "properties": {
            "version": {"const": ENVELOPE_VERSION},
            "command": {"description": "Name of the command, such as up or local status.", **TEXT},
            "status": {"enum": ["ok", "failed"]},
            "exit_code": {"type": "integer", "minimum": 0, "maximum": 255},
            "data": {"description": "Depends on the command; if it failed, partial data or null."},
            "diagnostics": {"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
        },
        "allOf": [
            {
                "if": {"properties": {"status": {"const": "ok"}}},
                "then": {"properties": {"exit_code": {"const": 0}}},
                "else": {"properties": {"exit_code": {"minimum": 1}}},
            },
            *conditions,
        ],
        "$defs": definitions,
    }


def events_schema() -> dict[str, Any]:
    """The schema of a line of `--events`: an event by its name, or the final envelope."""
    from tpuctl.model import events

    kinds = sorted(typing.get_args(events.Event), key=lambda kind: str(kind.__name__))
    definitions: dict[str, Any] = {"diagnostic": DIAGNOSTIC}
    for kind in kinds:
        fields = {field.name: _field_schema(str(field.type)) for field in dataclasses.fields(kind)}
        definitions[kind.__name__] = {
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "required": ["event", *fields],
            "properties": {"event": {"const": kind.__name__}, **fields},
        }
        if "bytes" in {str(field.type) for field in dataclasses.fields(kind)}:
            definitions[kind.__name__]["properties"]["encoding"] = {"const": "base64"}
    return {
        "$schema": DIALECT,
        "title": "A line of tpuctl --json --events",
        "oneOf": [
            *({"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds),
            {"$ref": "envelope.schema.json"},
        ],
        "$defs": definitions,
    }


def _field_schema(written: str) -> dict[str, Any]:
    """A field's annotation as a schema."""
    known: dict[str, dict[str, Any]] = {
        "str": TEXT,
        "int": {"type": "integer"},
        "float": {"type": "number"},
        "bool": {"type": "boolean"},
        "bytes": {"description": "Text, or base64 if encoding is base64.", **TEXT},
        "None": {"type": "null"},
        "Mapping[str, Any]": {"type": "object"},
        "tuple[PlannedStep, ...]": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["address", "action", "because", "depends_on"],
                "properties": {
                    **dict.fromkeys(("address", "action", "because"), TEXT),
                    "depends_on": {"type": "array", "items": TEXT},
                },
            },
        },
        "Outcome": {"enum": ["done", "unchanged", "failed", "skipped", "interrupted"]},
        "Diagnostic": {"$ref": "#/$defs/diagnostic"},
    }
    parts = [known[part.strip()] for part in written.split("|")]
    return parts[0] if len(parts) == 1 else {"anyOf": parts}
