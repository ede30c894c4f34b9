"""The fields of an API's response without its private values, so that it can be published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["as_json", "constants", "fields", "method_name", "redacted"]

# Enumerations, kinds and types come from the APIs; everything else may be personal data.
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]{2,}|[a-z]+#[A-Za-z]+|type\.googleapis\.com/\S+")
FREE_TEXT = ("name", "displayName", "title", "description", "etag", "fingerprint", "message")
FREE_KEYS = ("labels", "metadata.items", "annotations")
PATTERNS = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\[EID: 0x[0-9a-f.]+\]", "[EID]"),
        (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "ACCOUNT"),
        (r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-][\d:]+)?", "TIME"),
        (r"https?://(?:127\.0\.0\.1|\[::1\]|localhost):\d+", "https://www.googleapis.com"),
        (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "ID"),
        (r"operation-[\w-]+", "operation-ID"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}(?:/\d+)?\b", "ADDRESS"),
        (r"\b[0-9a-f]*\d[0-9a-f]{11,}\b", "ID"),
        (r"\b\d{6,}\b", "NUMBER"),
    )
)


def as_json(answer: Any) -> Any | None:
    """An official client's answer as plain JSON; None if it is not an API message.

    Fields with default values are left out, as on the wire.
    """
    from google.api_core.iam import Policy
    from google.protobuf import json_format
    from google.protobuf.message import Message

    if isinstance(answer, Policy):
        return answer.to_api_repr()
    if isinstance(answer, dict):
        return answer
    for inner in ("_response", "operation", "_pb"):  # pages, operations, proto-plus messages
        if not isinstance(answer, Message) and hasattr(answer, inner):
            return as_json(getattr(answer, inner))
    if isinstance(answer, Message):
        try:
            found = json_format.MessageToDict(answer)
        except (TypeError, json_format.Error):  # contains a message of an unknown type
            return {"unknown": answer.DESCRIPTOR.full_name}
        return found if isinstance(found, dict) else None
    properties = getattr(answer, "_properties", None)  # a bucket or an object of Cloud Storage
    return properties if isinstance(properties, dict) else None


def method_name(method: Any) -> str:
    """The name of a client's method in records, such as `tpu_v2.get_node`."""
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "call")
    if owner is None:
        return str(name)
    parts = type(owner).__module__.split(".")
    package = next((part for part in parts if re.search(r"_v\d|^storage$", part)), parts[0])
    service = type(owner).__name__.removesuffix("Client").lower()
    return f"{package}.{name}" if service in package else f"{package}.{service}.{name}"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            is_user_label = path.endswith("labels") and not str(key).startswith("tpuctl")
            name = "*" if is_user_label else str(key)  # users' label keys may be private
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


def fields(answer: Any) -> set[str]:
    """The paths of fields with a value, such as `networkEndpoints[].ipAddress`."""
    return {path for path, _ in leaves(answer)}


def constants(answer: Any) -> Iterator[tuple[str, str]]:
    """Enumeration values and similar constants, with their paths."""
    for path, value in leaves(answer):
        last = path.rpartition(".")[2].removesuffix("[]")
        if last in FREE_TEXT or any(f"{key}." in f".{path}" for key in FREE_KEYS):
            continue
        if isinstance(value, bool):
            yield path, str(value).lower()
        elif isinstance(value, str) and CONSTANT.fullmatch(value):
            yield path, value


def redacted(text: str, names: dict[str, str]) -> str:
    """A text without what is specific to a run or a project.

    `names` has the placeholder for each word; longer words are replaced first.
    """
    for word in sorted(names, key=len, reverse=True):
        text = text.replace(word, names[word])
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text
