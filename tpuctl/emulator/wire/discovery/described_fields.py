"""Fields that Google's description of a method has, and the client's message, which is older or
newer, has not: they are refused as not emulated, instead of as unknown to Google."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tpuctl.emulator.wire.discovery import documents
from tpuctl.emulator.wire.discovery.method_list import versioned_name

__all__ = ["is_described"]


def is_described(verb: str, path: str, field: Sequence[str], *, is_in_body: bool) -> bool:
    """Whether a request may have a query parameter, or a field such as ("disks[0]", "source")."""
    name = versioned_name(verb, path)
    if name is None:
        return False
    api, _, full_name = name.partition(":")
    document = documents.read(api)
    description = documents.method(api, full_name.partition(".")[2])
    if not is_in_body:
        return field[0] in description.get("parameters", {})
    schema = description.get("request")
    for key in field:
        schema = _resolved(document, schema).get("properties", {}).get(re.sub(r"\[.*", "", key))
    return schema is not None


def _resolved(document: documents.Json, schema: Any) -> documents.Json:
    """The schema of a message, of the items of a list, or of the values of a map."""
    while schema and ("$ref" in schema or "items" in schema):
        schema = schema["items"] if "items" in schema else document["schemas"][schema["$ref"]]
    more = (schema or {}).get("additionalProperties")
    return _resolved(document, more) if isinstance(more, dict) else schema or {}
