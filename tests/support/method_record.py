"""Which methods the tests call, and which commands of gcloud they run, for the documentation.

`make methods` writes both files, and a run of all tests fails if they list what no test calls.
"""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.transcripts import Tally

__all__ = ["GCLOUD_FILE", "METHODS_FILE", "uncalled", "write"]

# `client` are those that Google's own clients call, `description` those whose responses were
# validated against Google's discovery documents.
METHODS_FILE = Path(__file__).parents[1] / "recorded" / "methods.json"
# By group of commands, as `compute tpus tpu-vm`: those that the tests run, and the other ones.
GCLOUD_FILE = Path(__file__).parents[1] / "recorded" / "gcloud.json"

# Groups of which a user of TPUs may need every command. Of others, those are listed of which the
# tests run a command.
_WHOLE_GROUPS = ("compute tpus",)


def write(tally: Tally) -> None:
    record = {"client": sorted(tally.called_by_clients), "description": sorted(tally.described)}
    _write(METHODS_FILE, record)
    if program := shutil.which("gcloud"):
        _write(GCLOUD_FILE, _groups(Path(program).resolve().parents[1], tally.gcloud_commands))


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _groups(installation: Path, ran: set[str]) -> dict[str, dict[str, list[str]]]:
    """The commands of each group: `ran` and `other`, without those in alpha and beta alone."""
    completions = runpy.run_path(str(installation / "data" / "cli" / "gcloud_completions.py"))
    others = {*_commands(completions["STATIC_COMPLETION_CLI_TREE"])} - ran
    groups: dict[str, dict[str, list[str]]] = {}
    for key, commands in (("ran", ran), ("other", others)):
        for command in sorted(commands):
            group, _, name = command.rpartition(" ")
            if key == "ran" or group in groups or group.startswith(_WHOLE_GROUPS):
                groups.setdefault(group, {"ran": [], "other": []})[key].append(name)
    return dict(sorted(groups.items()))


def _commands(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in node["commands"].items():
        if inner["commands"]:
            yield from _commands(inner, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def uncalled(tally: Tally) -> list[str]:
    """What the files claim that no test called or ran. Without gcloud, that is not known."""
    if shutil.which("gcloud") is None:
        return []
    record = json.loads(METHODS_FILE.read_text("utf-8"))
    called = {"client": tally.called_by_clients, "description": tally.described}
    methods = [
        f"{name} ({kind})"
        for kind, names in record.items()
        for name in names
        if name not in called[kind]
    ]
    groups = json.loads(GCLOUD_FILE.read_text("utf-8"))
    commands = [f"{group} {name}" for group, names in groups.items() for name in names["ran"]]
    return methods + [f"gcloud {name}" for name in commands if name not in tally.gcloud_commands]
