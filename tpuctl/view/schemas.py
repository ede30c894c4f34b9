"""JSON schemas of the output of `--json` and `--events`, generated from their types."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from tpuctl.errors import Diagnostic
from tpuctl.model import events
from tpuctl.model.jobs.profile import Profile
from tpuctl.view.progress.json_lines import ENVELOPE_VERSION
from tpuctl.view.responses import catalog, checks, ci, export, jobs, local, machines, stacks

# By command. Its options determine which of several models applies.
RESPONSES: Mapping[str, Any] = {
    "init": stacks.WrittenFiles | list[str],
    "doctor": checks.Diagnosis | checks.Role,
    "plan": stacks.Plan,
    "up": stacks.Plan | stacks.UpDetached,
    "status": stacks.Status,
    "dashboard": machines.Dashboard,
    "down": stacks.Down,
    "orphans": stacks.Orphans,
    "check": checks.CheckedStack | checks.CheckedScripts | checks.Rules,
    "rehearse": checks.Rehearsal | checks.Compilation,
    "run": jobs.JobSubmission | jobs.Sweep | jobs.QueuedJobs,
    "jobs": list[jobs.Job],
    "jobs show": jobs.JobReport,
    "jobs compare": jobs.Comparison,
    "jobs run": jobs.QueueRun,
    "logs": jobs.Logs,
    "wait": jobs.JobSubmission,
    "stop": jobs.StoppedJob,
    "profile": Profile,
    "notify test": jobs.WebhookTest,
    "explain": jobs.JobExplanation | jobs.MessageExplanation | jobs.CommandExplanation,
    "report": jobs.JobReport,
    "ssh": machines.CommandResult,
    "cp": machines.CopyResult,
    "forward": machines.PortForwardings,
    "notebook": machines.Notebook,
    "ssh-config": machines.SshHosts,
    "types": catalog.TypeCatalog,
    "zones": catalog.ZoneCatalog,
    "runtimes": catalog.RuntimeCatalog,
    "prices": catalog.ZonePrices
    | catalog.NodeOffers
    | catalog.MachinePrices
    | catalog.DiskPrices
    | catalog.StoragePrices,
    "quota": catalog.Limits,
    "debug-dump": checks.DebugDump,
    "skill": catalog.HelpText,
    "mcp": None,
    "help": catalog.HelpText,
    "ci": list[ci.System],
    "ci github": ci.Pipeline,
    "ci gitlab": ci.Pipeline,
    "ci cloudbuild": ci.Pipeline,
    "ci start": jobs.JobSubmission,
    "ci follow": jobs.JobSubmission,
    "ci summary": jobs.JobReport,
    "export jobset": export.JobSet,
    "local up": local.LocalCloud,
    "local down": local.LocalDown,
    "local status": local.LocalStatus,
    "local replay": local.Replay,
    "local reset": local.LocalReset,
    "local prune": local.LocalPrune,
    "local token": local.Token,
    "local env": local.Environment,
    "local set": local.Settings,
    "local fault add": local.Fault,
    "local fault list": list[local.Fault],
    "local fault remove": list[local.Fault],
    "local fault release": local.ReleasedFaults,
}

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
BYTES = {"description": "Text, or base64 if encoding is base64.", **TEXT}


class _Printed(GenerateJsonSchema):
    """Only optional keys of response models may be absent; events have all their keys."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        return dict(BYTES)


def _schemas(types: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each type by name, and what they refer to in `$defs`."""
    schemas, rest = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(shape)) for name, shape in types.items()],
        ref_template="#/$defs/{model}",
        schema_generator=_Printed,
    )
    return {name: schema for (name, _), schema in schemas.items()}, rest.get("$defs", {})


def envelope_schema() -> dict[str, Any]:
    """The schema of the object that `--json` prints; `$defs` has each command's data by name."""
    data = {f"data of {command}": RESPONSES[command] for command in sorted(RESPONSES)}
    schemas, definitions = _schemas(data | {"diagnostic": Diagnostic})
    page = {"$ref": "#/$defs/data%20of%20help"}  # of --help and --version
    conditions = []
    for command in sorted(RESPONSES):
        name = f"#/$defs/data of {command}".replace(" ", "%20")
        conditions.append(
            {
                "if": {"properties": {"command": {"const": command}, "status": {"const": "ok"}}},
                "then": {
                    "properties": {"data": {"anyOf": [{"$ref": name}, page, {"type": "null"}]}}
                },
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
            "diagnostics": {"type": "array", "items": schemas.pop("diagnostic")},
        },
        "allOf": [
            {
                "if": {"properties": {"status": {"const": "ok"}}},
                "then": {"properties": {"exit_code": {"const": 0}}},
                "else": {"properties": {"exit_code": {"minimum": 1}}},
            },
            *conditions,
        ],
        "$defs": definitions | schemas,
    }


def events_schema() -> dict[str, Any]:
    """The schema of a line of `--events`: an event by its name, or the final envelope."""
    kinds = {kind.__name__: kind for kind in typing.get_args(events.Event)}
    schemas, definitions = _schemas(dict(sorted(kinds.items())))
    for name in schemas:
        schema = definitions[name]
        properties = {"event": {"const": name}, **schema["properties"]}
        definitions[name] = schema | {"required": list(properties), "properties": properties}
        if BYTES in properties.values():
            properties["encoding"] = {"const": "base64"}
    return {
        "$schema": DIALECT,
        "title": "A line of tpuctl --json --events",
        "oneOf": [*schemas.values(), {"$ref": "envelope.schema.json"}],
        "$defs": definitions,
    }
