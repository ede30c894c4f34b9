"""Parameters, fields and headers of Google's API that are not emulated are refused by name.

What a method takes is in Google's API description; what of that is used here is listed below, or
in the schemas of buckets and objects. So what is new in a description is refused until it is used.
What is not in it is ignored, as Google does. Values that ask for what happens anyway are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.emulator.state.errors import unimplemented
from tpuctl.emulator.storage.buckets.bucket_schema import BUCKET_FIELDS
from tpuctl.emulator.storage.objects.objects import WRITABLE_FIELDS
from tpuctl.emulator.storage.requests.primitives import read_body_json
from tpuctl.emulator.wire.discovery import documents

_PRECONDITIONS = tuple(
    f"{prefix}{name}{match}"
    for prefix in ("if", "ifSource")
    for name in ("Generation", "Metageneration")
    for match in ("Match", "NotMatch")
)
_USED_PARAMETERS = frozenset(
    (
        *_PRECONDITIONS,
        *("alt", "fields", "key", "oauth_token", "prettyPrint", "quotaUser", "uploadType"),
        *(
            "allowNonEmpty",
            "contentEncoding",
            "delimiter",
            "destinationKmsKeyName",
            "dropContextGroups",
        ),
        *("enableObjectRetention", "filter"),
        # Every bucket can be listed.
        *("endOffset", "generation", "includeFoldersAsPrefixes", "includeTrailingDelimiter"),
        *("kmsKeyName", "matchGlob", "maxBytesRewrittenPerCall", "maxResults", "name"),
        *("optionsRequestedPolicyVersion", "overrideUnlockedRetention", "pageSize", "pageToken"),
        *("destinationPredefinedAcl", "predefinedAcl", "predefinedDefaultObjectAcl"),
        *("permissions", "prefix", "project", "projection", "recursive", "returnPartialSuccess"),
        *(
            "rewriteToken",
            "serviceAccountEmail",
            "showDeletedKeys",
            "softDeleted",
            "sourceGeneration",
            "startOffset",
            "userIp",
        ),
        *("userProject", "versions"),
    )
)
_DEFAULT_VALUES: Mapping[str, tuple[str, ...]] = {"mode": ("Disabled",)}
_OUTPUT_ONLY = dict.fromkeys(
    (
        *("bucket", "componentCount", "crc32c", "customerEncryption", "etag", "generation"),
        *("hardDeleteTime", "id", "kind", "kmsKeyName", "md5Hash", "mediaLink", "metageneration"),
        *("name", "owner", "restoreToken", "retentionExpirationTime", "selfLink", "size"),
        *("softDeleteTime", "timeCreated", "timeDeleted", "timeFinalized"),
        *("timeStorageClassUpdated", "updated"),
    )
)
_OBJECT_FIELDS: Mapping[str, Any] = _OUTPUT_ONLY | dict.fromkeys(WRITABLE_FIELDS)
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "Bucket": {**BUCKET_FIELDS, "acl": None, "defaultObjectAcl": None},
    "Object": _OBJECT_FIELDS,
    "ComposeRequest": {
        "deleteSourceObjects": None,
        "destination": _OBJECT_FIELDS,
        "kind": None,
        "sourceObjects": None,
    },
}
# Headers of uploads through the XML API, as prefixes.
_UNUSED_HEADERS = (
    "x-goog-acl",
    "x-goog-content-length-range",
    "x-goog-copy-source",
    "x-goog-metadata-directive",
    "x-goog-object-lock-",
)


def check_parameters(method: str, query: Mapping[str, list[str]]) -> None:
    """Raise ApiError if a query parameter of a method, as `objects.get`, is not emulated."""
    described = _method(method).get("parameters", {})
    for name in described.keys() & query.keys():
        value = (query[name] or [""])[-1]
        is_used = name in _USED_PARAMETERS
        is_in_path = described[name].get("location") == "path"
        if not is_used and not is_in_path and not _asks_nothing(name, value):
            raise unimplemented(f"storage.{method} with {name}")


def check_fields(method: str, body: bytes) -> None:
    """Raise ApiError if a field of a method's request is not emulated."""
    name = _method(method).get("request", {}).get("$ref", "")
    if name in _FIELDS:
        _check(method, read_body_json(body), _schemas()[name], _FIELDS[name], "")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ApiError if a header of an upload through the XML API is not emulated."""
    for name, value in headers.items():
        if name.lower().startswith(_UNUSED_HEADERS) and value != "project-private":
            raise unimplemented(f"The header {name.lower()}")


def _check(method: str, value: Any, schema: Any, used: Any, path: str) -> None:
    if isinstance(value, list):
        for item in value:
            _check(method, item, schema.get("items", {}), used, path)
        return
    schema = _schemas().get(schema.get("$ref"), schema)
    if not isinstance(value, Mapping) or not isinstance(used, Mapping) or "*" in used:
        return
    for name in value.keys() & schema.get("properties", {}).keys():
        inner = f"{path}{name}"
        if name not in used:
            if not _asks_nothing(name, value[name]):
                raise unimplemented(f"storage.{method} with {inner}")
            continue
        item = used[name]
        item = item[0] if isinstance(item, list) else item
        _check(method, value[name], schema["properties"][name], item, f"{inner}.")


def _asks_nothing(name: str, value: Any) -> bool:
    """Whether a value is the default of its parameter or field."""
    if isinstance(value, Mapping):
        return all(_asks_nothing(key, inner) for key, inner in value.items())
    if name == "effectiveTime":
        return True
    if isinstance(value, Sequence) and not isinstance(value, str):
        return not value
    return value in (None, False, "", "false", "False", *_DEFAULT_VALUES.get(name, ()))


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = documents.read("storage.v1")["schemas"]
    return schemas


def _method(method: str) -> dict[str, Any]:
    """The description of a method; empty for one of the XML API alone."""
    return documents.method("storage.v1", method)
