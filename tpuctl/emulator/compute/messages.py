"""Messages and links of Compute Engine, and which of its clients a path belongs to."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from tpuctl.google_imports import compute_types

__all__ = ["LINK", "as_row", "collection_of", "message_of"]

LINK = "https://www.googleapis.com/compute/v1/"  # what Google's links begin with
_PACKAGE = "google.cloud.compute_v1"


def message_of(name: str, value: Mapping[str, Any]) -> Any:
    """A message of Compute Engine from its JSON form."""
    return json_format.ParseDict(dict(value), getattr(compute_types(), name).pb()())


def as_row(message: Any) -> dict[str, Any]:
    """The JSON form of a message that a client sent."""
    row: dict[str, Any] = json_format.MessageToDict(message)
    return row


def collection_of(path: str) -> tuple[str, str] | None:
    """The module and class of the client that is about a path; None where there is none.

    `…/zones/Z/instances/I/stop` is about `instances`; operations have a client for each scope.
    """
    compute_types()  # makes the package cheap to import
    parts = [part for part in path.removeprefix("/compute/v1").split("/")[3:] if part]
    folders = importlib.import_module(f"{_PACKAGE}.services").__path__
    for module in _candidates(parts):
        if importlib.machinery.PathFinder.find_spec(module, list(folders)) is not None:
            return module, "".join(part.capitalize() for part in module.split("_"))
    return None


def _candidates(parts: list[str]) -> list[str]:
    """Module names that may be about what follows the project in a path, best first."""
    first, rest = (parts[0], parts[1:]) if parts else ("", [])
    if first == "aggregated":
        named, scopes = rest, ["", "global_"]
    elif first == "global":
        named, scopes = rest, ["global_", ""]
    elif first in ("zones", "regions"):
        scope = first.removesuffix("s") + "_"
        named, scopes = (rest[1:], [scope, ""]) if len(rest) > 1 else ([first], [""])
    else:
        return ["projects"] if len(parts) < 2 else []
    if not named or not re.fullmatch(r"[a-z][A-Za-z0-9]*", named[0]):
        return []
    name = re.sub(r"([A-Z])", r"_\1", named[0]).lower()
    return [scope + name for scope in scopes]
