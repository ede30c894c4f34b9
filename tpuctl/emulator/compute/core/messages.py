"""Compute Engine messages and links, and the client that a path belongs to."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from tpuctl.google_imports import compute_types

LINK = "https://www.googleapis.com/compute/v1/"  # prefix of Google's links
_PACKAGE = "google.cloud.compute_v1"


def message_of(name: str, value: Mapping[str, Any]) -> Any:
    """A Compute Engine message from its JSON form."""
    return json_format.ParseDict(dict(value), getattr(compute_types(), name).pb()())


def as_row(message: Any) -> dict[str, Any]:
    """The JSON form of a message."""
    row: dict[str, Any] = json_format.MessageToDict(message)
    return row


def client_of(path: str) -> tuple[str, str] | None:
    """The module and class of the client for a path; None for unknown paths.

    `…/zones/Z/instances/I/stop` belongs to `instances`; operations have a client for each scope,
    and so have some collections inside a resource.
    """
    compute_types()  # the light import of the package
    parts = [part for part in path.removeprefix("/compute/v1").split("/")[3:] if part]
    folders = importlib.import_module(f"{_PACKAGE}.services").__path__
    for module in _candidates(parts):
        if importlib.machinery.PathFinder.find_spec(module, list(folders)) is not None:
            return module, "".join(part.capitalize() for part in module.split("_"))
    return None


def _candidates(parts: list[str]) -> list[str]:
    """Candidate module names for the path after the project, best first."""
    first, rest = (parts[0], parts[1:]) if parts else ("", [])
    if first == "aggregated":
        names, scopes = rest, ["", "global_"]
    elif first == "global":
        names, scopes = rest, ["global_", ""]
    elif first in ("zones", "regions"):
        scope = first.removesuffix("s") + "_"
        names, scopes = (rest[1:], [scope, ""]) if len(rest) > 1 else ([first], [""])
    else:
        return ["projects"] if len(parts) < 2 else []
    if not names or not re.fullmatch(r"[a-z][A-Za-z0-9]*", names[0]):
        return []
    name = _snake_case(names[0])
    collections = [name]
    if len(names) > 2 and names[2].endswith("s"):  # resizeRequests of an instanceGroupManager
        collections.insert(0, f"{name.removesuffix('s')}_{_snake_case(names[2])}")
    return [scope + name for name in collections for scope in scopes]


def _snake_case(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).lower()
