"""Compares a recorded response with the local cloud's: status, reason, text, fields, constants.

Names, ids, times, addresses and checksums differ between any two runs: of these only the presence
and the form are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from tpuctl.emulator.replay.recordings import json_content

# Values under these keys are different in every run.
_RANDOM_KEYS = re.compile(
    r"(?i)(.*(fingerprint|timestamp|time|etag|ip|ipv6range|address|pageToken|synctoken|keydata|cidrblock)"
    r"|id|uniqueId|oauth2ClientId|generation|metageneration|projectNumber|number|user|progress|kid"
    r"|updated|timeCreated|targetId|selfLinkWithId|data|email|serverIp|cidr.*|gatewayAddress)"
)
# The state of work in progress depends on the moment of the request.
_STATE_KEYS = ("done", "progress", "status", "state", "endTime", "response", "error")
_TRANSIENT_STATES = frozenset(
    ("CREATING", "DELETING", "PENDING", "PROVISIONING", "STAGING", "STARTING")
)
_ITEM_KEYS = ("name", "id", "email", "role", "projectId", "key")
_FORMS = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\[EID: 0x[0-9a-f.]+\]", "EID"),
        (r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-][\d:]+)?", "TIME"),
        (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "UUID"),
        (r"\boperation-[\w-]+", "OPERATION"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}(?:/\d+)?\b", "ADDRESS"),
        (r"\b\d{6,}\b|\$\{projectNumber\}", "NUMBER"),
        (r"already being used by '[^']*'", "already being used"),
        (r"\bAAAA[\w+/]{12,}=*", "KEY"),  # of SSH
    )
)
# Headers whose presence and form belong to a response of Cloud Storage.
_HEADERS = re.compile(r"x-goog-.*|content-type|etag|content-range|accept-ranges|location")
_UNCOMPARED_HEADERS = re.compile(r"x-goog-(gfe|trace|ext|request|safety).*")
_SCOPE = re.compile(r"(regions|zones)/|global$")  # keys of aggregated lists
_PORT_KEY = "tpuctl-ssh-port"  # only the local cloud's machines have it
Leaves = dict[str, list[Any]]


@dataclass(frozen=True)
class Difference:
    """How one response differs: `kind` is status, reason, text, field or constant."""

    kind: str
    path: str  # of the field; "" for a status, reason or text
    recorded: str
    local: str


@dataclass(frozen=True)
class Response:
    """What is compared of a response. Paths are as `items[].name`."""

    status: int
    reasons: frozenset[str] = frozenset()  # of an error: status and reason, in all their places
    text: str | None = None  # of an error; None if unknown
    leaves: Leaves = field(default_factory=dict)  # values by path
    is_complete: bool = True  # False: fields that are not listed may be there, too
    omits_defaults: bool = False  # fields that are not listed may be there with default values
    absent: frozenset[str] = frozenset()  # of an incomplete one, the fields that are not there


def parse_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    has_headers: bool = False,
    is_complete: bool = True,
    is_masked: bool = False,
) -> Response:
    """The comparable parts of a response; headers have names in lower case."""
    if is_masked:
        return Response(status, is_complete=False)
    leaves = _header_leaves(headers) if has_headers else {}
    kind = headers.get("content-type", "")
    is_json = "json" in kind or not kind or (status >= 400 and "html" in kind)
    content = json_content(body) if is_json else None
    if isinstance(content, dict):
        return _parse_json(status, content, leaves, is_complete)
    if "xml" in kind and body:
        return _parse_xml(status, body, leaves, is_complete)
    return Response(status, leaves=leaves, is_complete=is_complete)


def _parse_json(
    status: int, content: dict[str, Any], leaves: Leaves, is_complete: bool
) -> Response:
    reasons: set[str] = set()
    text = None
    error = content.get("error")
    if status >= 400 and isinstance(error, dict):
        text = error.get("message", "")
        for key, value in _leaves(error):
            if key in ("status", "errors[].reason", "details[].reason"):
                reasons.add(str(value))
    for path, value in _leaves(content):
        if not (status >= 400 and path.endswith("message")):
            leaves.setdefault(path, []).append(value)
    return Response(status, frozenset(reasons), text, leaves, is_complete)


def _parse_xml(status: int, body: bytes, leaves: Leaves, is_complete: bool) -> Response:
    try:
        root = ElementTree.fromstring(body)  # of Google or of the local cloud
    except ElementTree.ParseError:
        return Response(status, leaves=leaves, is_complete=is_complete)
    names = {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}
    if status < 400:
        leaves |= {f"xml:{name}": [value] for name, value in names.items()}
        return Response(status, leaves=leaves, is_complete=is_complete)
    leaves |= {f"xml:{name}": [] for name in names}
    reasons = frozenset([names["Code"]] if "Code" in names else ())
    return Response(status, reasons, names.get("Message"), leaves, is_complete)


def _header_leaves(headers: Mapping[str, str]) -> Leaves:
    return {
        f"header {name}": [_header_value(name, value)]
        for name, value in headers.items()
        if _HEADERS.fullmatch(name) and not _UNCOMPARED_HEADERS.fullmatch(name)
    }


def _header_value(name: str, value: str) -> str:
    if name == "etag":
        return '"quoted"' if value.startswith('"') else "unquoted"
    if name == "content-type":
        return value.replace(" ", "").lower()
    return ",".join(part.strip() for part in value.split(",")) if name == "x-goog-hash" else value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            name = "*" if _SCOPE.match(key) else key
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        yield path, value


def response_of_facts(row: Mapping[str, Any]) -> Response:
    """The expected response of a row of a table of facts."""
    leaves: Leaves = {path: [] for path in row.get("fields", ())}
    for path, value in row.get("constants", {}).items():
        leaves[path] = value if isinstance(value, list) else [value]
    reasons = row.get("reason", ())
    return Response(
        status=row["status"],
        reasons=frozenset([reasons] if isinstance(reasons, str) else reasons),
        text=row.get("text"),
        leaves=leaves,
        is_complete=row.get("complete", False),
        absent=frozenset(row.get("absent", ())),
    )


def compare(recorded: Response, local: Response) -> list[Difference]:
    """All differences; a different status is the only one reported."""
    if recorded.status != local.status:
        return [Difference("status", "", str(recorded.status), _brief(local))]
    differences = []
    if missing := recorded.reasons - local.reasons:
        differences.append(
            Difference("reason", "", _listed(missing), _listed(local.reasons) or "none")
        )
    if recorded.text is not None and form(recorded.text) != form(local.text or ""):
        differences.append(Difference("text", "", recorded.text, local.text or "none"))
    return differences + list(_compare_leaves(recorded, local))


def _brief(response: Response) -> str:
    return f"{response.status} {response.text}" if response.text else str(response.status)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


def _compare_leaves(recorded: Response, local: Response) -> Iterator[Difference]:
    transient = is_transient(recorded.leaves) or is_transient(local.leaves)
    for path in sorted({*recorded.leaves} | {*local.leaves}):
        if (transient and is_work_state(path)) or path.endswith(f"metadata.{_PORT_KEY}"):
            continue
        if path not in local.leaves:
            if not _has_child(path, local.leaves):
                yield Difference("field", path, _sample(recorded.leaves[path]), "absent")
        elif path not in recorded.leaves:
            is_complete = recorded.is_complete and not path.startswith("header ")
            is_default = recorded.omits_defaults and _are_defaults(local.leaves[path])
            is_absent = (is_complete and not is_default) or path in recorded.absent
            if is_absent and not _has_child(path, recorded.leaves):
                yield Difference("field", path, "absent", _sample(local.leaves[path]))
        else:
            left, right = (
                {form(value) for value in response.leaves[path]} for response in (recorded, local)
            )
            are_links = path.endswith("[]") and any("projects/" in value for value in left)
            if is_random_key(path) or (are_links and left & right):
                continue
            if not left <= right:
                yield Difference("constant", path, _listed(left), _listed(right))


def _are_defaults(values: Iterable[Any]) -> bool:
    """Whether gRPC would not transmit any of these values of a field."""
    return all(
        value in (None, "", "0", 0, [], {}) or str(value).endswith("_UNSPECIFIED")
        for value in values
    )


def _has_child(path: str, leaves: Leaves) -> bool:
    """Whether the path is an empty object or list here, and has content there."""
    return any(other.startswith((f"{path}.", f"{path}[")) for other in leaves)


def is_transient(leaves: Leaves) -> bool:
    """Whether the response describes an operation or a resource that is still being changed."""
    if leaves.get("kind") == ["compute#operation"]:
        return leaves.get("status") != ["DONE"]
    if any(
        "operations/" in str(name) or str(name).startswith("operation-")
        for name in leaves.get("name", ())
    ):
        return leaves.get("done") != [True]
    states = {*map(str, leaves.get("state", ())), *map(str, leaves.get("status", ()))}
    return bool(states & _TRANSIENT_STATES)


def matching_items(recorded: Any, local: Any) -> tuple[Any, Any]:
    """Two responses whose lists keep only the items that both have, by name.

    A project has resources, members and audits that the recording did not create.
    """
    if not isinstance(recorded, dict) or not isinstance(local, dict):
        return recorded, local
    first, other = dict(recorded), dict(local)
    for name in recorded.keys() & local.keys():
        if isinstance(recorded[name], dict) and isinstance(local[name], dict):
            if any(map(_SCOPE.match, recorded[name])):  # an aggregated list
                common = recorded[name].keys() & local[name].keys()
                pairs = {
                    key: matching_items(recorded[name][key], local[name][key]) for key in common
                }
                first[name] = {key: pair[0] for key, pair in pairs.items()}
                other[name] = {key: pair[1] for key, pair in pairs.items()}
        elif _is_list_of_resources(recorded[name]) and _is_list_of_resources(local[name]):
            shared_keys = _keys(recorded[name]) & _keys(local[name])
            first[name] = [item for item in recorded[name] if _key(item) in shared_keys]
            other[name] = [item for item in local[name] if _key(item) in shared_keys]
            for response in (first, other):
                response.pop("nextPageToken", None)
    for name in ("auditConfigs", "bindings"):
        for response in (first, other):
            response.pop(name, None)
    return first, other


def _is_list_of_resources(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and _key(item) for item in value)


def _keys(items: Iterable[dict[str, Any]]) -> set[str]:
    return {_key(item) for item in items}


def _key(item: dict[str, Any]) -> str:
    return next((str(item[name]) for name in _ITEM_KEYS if name in item), "")


def is_work_state(path: str) -> bool:
    """Whether the field of an operation or resource depends on the moment of the request."""
    keys = path.split(".")
    return keys[0] in _STATE_KEYS or not {"endTime", "statusDetail"}.isdisjoint(keys)


def is_random(path: str, value: Any) -> bool:
    """Whether the value is a name, id, time, address or checksum of one project or run."""
    return is_random_key(path) or form(value) != _plain(value)


def is_random_key(path: str) -> bool:
    if path.startswith("header ") and path != "header x-goog-generation":
        return path == "header location"
    key = path.replace("[]", "").rpartition(".")[2]
    return _RANDOM_KEYS.fullmatch(key) is not None


def _sample(values: list[Any]) -> str:
    return _listed(values)[:80] or '""'


def form(value: Any) -> str:
    """A value without what differs in every run, as text."""
    text = _plain(value)
    for pattern, word in _FORMS:
        text = pattern.sub(word, text)
    return text


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)
