"""Discovery documents, from which google-api-python-client makes its methods at run time.

    GET /$discovery/rest?version=v2                of the API whose host is asked
    GET /discovery/v1/apis/tpu/v2/rest             the older address, for every API
    GET /discovery/v1/apis?name=tpu&preferred=true the list of them

The files beside this one are made by `make docs` from Google's own documents: methods that the
local cloud offers, the schemas they need, and no descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.emulator.state.errors import ApiError

__all__ = ["FOLDER", "answer", "is_discovery"]

FOLDER = Path(__file__).parent
_REST = "/$discovery/rest"
_LIST = re.compile(r"/discovery/v1/apis/?")
_DOCUMENT = re.compile(r"/discovery/v1/apis/([^/]+)/([^/]+)/rest")
# Versions that Google serves and google-api-python-client does not ship: Ray asks for this one.
_ALIASES = {"tpu.v2alpha": "tpu.v2alpha1"}
# The version that a host's document is of when none is named: SkyPilot and Ray name none.
_PREFERRED = {"cloudresourcemanager": "v3", "orgpolicy": "v2", "tpu": "v2"}

Json = dict[str, Any]


def is_discovery(path: str) -> bool:
    """Whether a path is one of the addresses of discovery documents."""
    path = path.replace("%24", "$")
    return path == _REST or bool(_LIST.fullmatch(path) or _DOCUMENT.fullmatch(path))


def answer(path: str, query: Mapping[str, Sequence[str]], host: str, origin: str) -> Json:
    """The document or list at a path. Raises ApiError for an API or version that is not served.

    `origin` is what links begin with; requests for Google's own hosts get Google's addresses.
    """
    path = path.replace("%24", "$")
    host = host.partition(":")[0]
    if path == _REST:
        versions = query.get("version") or [""]
        return _document(_document_name(host, versions[-1]), host, origin)
    match = _DOCUMENT.fullmatch(path)
    if match is not None:
        return _document(f"{match[1]}.{match[2]}", host, origin)
    return _directory(query, host, origin)


def _document_name(host: str, version: str) -> str:
    """The document that a host serves in a version, or in the one preferred."""
    api = host.removesuffix(".googleapis.com")
    if api != host:
        return f"{api}.{version or _PREFERRED.get(api, 'v1')}"
    names = [name for name in _names() if name.partition(".")[2] == version]
    if len(names) != 1:
        raise _not_found(
            f"version={version} is of {len(names)} APIs at this address. Name the API as well: "
            "/discovery/v1/apis/API/VERSION/rest"
        )
    return names[0]


def _document(name: str, host: str, origin: str) -> Json:
    if name not in _names():
        raise _not_found(f"There is no discovery document of {name}.")
    stored = _read(_ALIASES.get(name, name))
    if name in _ALIASES:
        version = name.partition(".")[2]
        old = _ALIASES[name].partition(".")[2]
        text = json.dumps(stored).replace(f'"{old}/', f'"{version}/')
        stored = {**json.loads(text), "version": version, "id": name.replace(".", ":")}
    root = f"{origin}/"
    if host.endswith(".googleapis.com"):
        root = f"https://{stored['name']}.googleapis.com/"
    return {**stored, "rootUrl": root, "baseUrl": root + stored["servicePath"]}


def _directory(query: Mapping[str, Sequence[str]], host: str, origin: str) -> Json:
    api_name = (query.get("name") or [""])[-1]
    only_preferred = (query.get("preferred") or ["false"])[-1] == "true"
    items = []
    for name in _names():
        api, _, version = name.partition(".")
        is_preferred = version == _PREFERRED.get(api, "v1")
        if api_name not in ("", api) or (only_preferred and not is_preferred):
            continue
        items.append(
            {
                "kind": "discovery#directoryItem",
                "id": f"{api}:{version}",
                "name": api,
                "version": version,
                "title": _read(_ALIASES.get(name, name))["title"],
                "discoveryRestUrl": f"{_origin_of(api, host, origin)}{_address_of(name, host)}",
                "preferred": is_preferred,
            }
        )
    return {"kind": "discovery#directoryList", "discoveryVersion": "v1", "items": items}


def _origin_of(api: str, host: str, origin: str) -> str:
    return f"https://{api}.googleapis.com" if host.endswith(".googleapis.com") else origin


def _address_of(name: str, host: str) -> str:
    api, _, version = name.partition(".")
    if host.endswith(".googleapis.com"):
        return f"{_REST}?version={version}"
    return f"/discovery/v1/apis/{api}/{version}/rest"


@cache
def _names() -> tuple[str, ...]:
    files = (path.name.removesuffix(".json") for path in FOLDER.glob("*.json"))
    return tuple(sorted([*files, *_ALIASES]))


@cache
def _read(name: str) -> Json:
    """A stored document in Google's shape: its methods under the resources that they are of."""
    stored = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    document: Json = {**stored["head"], "schemas": stored["schemas"], "resources": {}}
    for place, method in stored["methods"].items():
        *resources, last = place.split(".")
        part = document
        for resource in resources:
            part = part.setdefault("resources", {}).setdefault(resource, {})
        part.setdefault("methods", {})[last] = method
    return document


def _not_found(text: str) -> ApiError:
    return ApiError("NOT_FOUND", text)
