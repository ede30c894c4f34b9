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

FOLDER = Path(__file__).parents[1] / "recorded"
# `client` are those that Google's own clients call, `description` those whose responses were
# validated against Google's discovery documents.
METHODS_FILE = FOLDER / "methods.json"
# Commands that `test` runs, those that only `soak` runs, and `other` ones of the same groups.
GCLOUD_FILE = FOLDER / "gcloud.json"

# Groups of which a user of TPUs may need every command, whether or not the tests run one.
_WHOLE_GROUPS = ("compute tpus",)


def write(tally: Tally, *, soak: bool) -> None:
    """Replace what the files say of a run of the tests, or of the soak: then commands only."""
    if not soak:
        record = {"client": sorted(tally.called_by_clients), "description": sorted(tally.described)}
        _write(METHODS_FILE, record)
    if program := shutil.which("gcloud"):
        commands = _read(GCLOUD_FILE)
        test = {*commands["test"]} if soak else tally.gcloud_commands
        soaked = (tally.gcloud_commands if soak else {*commands["soak"]}) - test
        existing = _gcloud_commands(Path(program).resolve().parents[1])
        groups = {*map(_group, test | soaked)} - {""}
        other = {
            command
            for command in existing - test - soaked
            if _group(command) in groups or command.startswith(_WHOLE_GROUPS)
            if not command.startswith(("alpha ", "beta "))
        }
        record = {"test": sorted(test), "soak": sorted(soaked), "other": sorted(other)}
        _write(GCLOUD_FILE, record)


def _group(command: str) -> str:
    return command.rpartition(" ")[0]


def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _gcloud_commands(installation: Path) -> set[str]:
    """All commands of a gcloud, without those that exist in alpha and beta alone."""
    completions = runpy.run_path(str(installation / "data" / "cli" / "gcloud_completions.py"))
    return {*_commands(completions["STATIC_COMPLETION_CLI_TREE"])}


def _commands(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in node["commands"].items():
        if inner["commands"]:
            yield from _commands(inner, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def uncalled(tally: Tally, *, soak: bool) -> list[str]:
    """What the files claim that no test called or ran. Without gcloud, that is not known."""
    if shutil.which("gcloud") is None:
        return []
    called = {"client": tally.called_by_clients, "description": tally.described}
    methods = [
        f"{name} ({kind})"
        for kind, names in ({} if soak else _read(METHODS_FILE)).items()
        for name in names
        if name not in called[kind]
    ]
    claimed = _read(GCLOUD_FILE)["soak" if soak else "test"]
    return methods + [
        f"gcloud {command}" for command in claimed if command not in tally.gcloud_commands
    ]
