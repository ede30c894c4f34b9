"""Validates JSON against the schemas of a discovery document."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.support.discovery_documents import DOCUMENTS, Document, document

Json = Any
Rule = str


@dataclass(frozen=True)
class Complaint:
    """A broken rule and its location, a path such as `networkEndpoints[].ipAddress`."""

    path: str
    rule: Rule
    value: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.path or 'the whole'}: {self.rule}{f' ({self.value})' if self.value else ''}"


@dataclass(frozen=True)
class Side:
    """Request or response of a method, with validation options."""

    method: str = ""  # "compute.instances.insert": required fields depend on it
    is_answer: bool = False
    is_partial: bool = False  # an update, or a response with a field mask
    has_numbers: bool = False  # enums are numbers

    @property
    def is_strict(self) -> bool:
        return not self.is_partial


Report = Callable[[str, Rule, Json], None]
Check = Callable[[Json, str, Side, Report], None]

_compiled: dict[tuple[str, str], Check] = {}


def check_schema(description: Document, schema: str, value: Json, side: Side) -> list[Complaint]:
    """All violations of the schema by a value."""
    complaints: dict[Complaint, None] = {}

    def report(path: str, rule: Rule, bad_value: Json) -> None:
        complaints[Complaint(path, rule, "" if bad_value is None else repr(bad_value)[:120])] = None

    _of(description, schema)(value, "", side, report)
    return list(complaints)


def check_text(description: Mapping[str, Any], text: str) -> Rule | None:
    """The rule that a path or query parameter breaks, or None."""
    kind = description.get("type")
    if kind == "boolean":
        return None if text in ("true", "false") else "not a valid boolean"
    if kind in ("integer", "number") and not re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return f"not a valid {kind}"
    if "enum" in description and text not in description["enum"]:
        return "unknown enum value"
    pattern = description.get("pattern")
    if pattern and not re.fullmatch(str(pattern), text):
        return "does not match its pattern"
    form = _FORMATS.get(str(description.get("format")))
    if form is not None and kind == "string":
        return form(text)
    if kind == "integer":
        return _in_range(int(text), str(description.get("format")))
    return None


def _of(description: Document, schema: str) -> Check:
    key = (description.name, schema)
    if key not in _compiled:

        def later(value: Json, path: str, side: Side, report: Report) -> None:
            _compiled[key](value, path, side, report)

        _compiled[key] = later  # for recursive schemas
        _compiled[key] = _compile(description, description.schemas[schema], schema)
    return _compiled[key]


def _compile(description: Document, schema: Mapping[str, Any], name: str) -> Check:
    if "$ref" in schema:
        return _of(description, schema["$ref"])
    kind = schema.get("type")
    if kind == "any":
        return lambda *rest: None
    if kind == "array":
        return _array(_compile(description, schema["items"], name))
    if kind == "object":
        values = schema.get("additionalProperties")
        if values is None:
            return _object(description, schema, name)
        if values.get("type") == "any" and "@type" in values.get("description", ""):
            return _any(description)
        return _mapping(_compile(description, values, name))
    return _scalar(schema)


# Containers.


def _array(inner: Check) -> Check:
    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, list):
            report(path, "not a valid array", value)
            return
        path += "[]"
        for item in value:
            inner(item, path, side, report)

    return check


def _mapping(inner: Check) -> Check:
    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, dict):
            report(path, "not a valid object", value)
            return
        path += "{}"
        for item in value.values():
            inner(item, path, side, report)

    return check


def _any(description: Document) -> Check:
    """A message whose type is in `@type`."""

    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, dict):
            report(path, "not a valid object", value)
            return
        name = value.get("@type")
        if not isinstance(name, str) or not name.startswith("type.googleapis.com/"):
            report(path, "missing @type", name)
            return
        package, _, message = name.partition("/")[2].rpartition(".")
        if package in _FOREIGN:
            return
        home = next(
            (document_name for document_name, its in DOCUMENTS.items() if its == package),
            description.name,
        )
        inner = document(home)
        if message not in inner.schemas:
            report(path, "unknown @type", name)
            return
        content = {key: item for key, item in value.items() if key != "@type"}
        _of(inner, message)(content, path, side, report)

    return check


# Packages without a document: error details, Empty, and folders in operations.
_FOREIGN = ("google.rpc", "google.protobuf", "google.storage.control.v2")


def _object(description: Document, schema: Mapping[str, Any], name: str) -> Check:
    properties = schema.get("properties", {})
    checks = {
        key: _field(description, property_schema, name, key)
        for key, property_schema in properties.items()
    }
    needs = [
        (key, _need(description, property_schema)) for key, property_schema in properties.items()
    ]
    needs = [(key, need) for key, need in needs if need is not None]
    entry_only = frozenset(
        key for key, property_schema in properties.items() if _is_entry_only(property_schema)
    )
    is_operation = name == "Operation" and "done" in properties

    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, dict):
            report(path, "not a valid object", value)
            return
        for key, item in value.items():
            inner = checks.get(key)
            field_path = f"{path}.{key}" if path else key
            if inner is None:
                report(field_path, f"unknown field of {name}", item)
            elif item is None:
                if side.is_answer:
                    report(field_path, "null in a response", None)
            else:
                inner(item, field_path, side, report)
                if side.is_answer and key in entry_only:
                    report(field_path, "input-only field in a response", item)
        if side.is_strict:
            for key, need in needs:
                if value.get(key) is None and need(side):
                    report(f"{path}.{key}" if path else key, "missing", None)
        if is_operation and side.is_answer:
            _check_operation(value, path, report)

    return check


def _need(description: Document, schema: Mapping[str, Any]) -> Callable[[Side], bool] | None:
    """A predicate for when the field is required, or None."""
    methods = frozenset(schema.get("annotations", {}).get("required", ()))
    if methods:
        return lambda side: not side.is_answer and side.method in methods
    if description.is_legacy:
        is_kind = "#" in str(schema.get("default", ""))
        return (lambda side: side.is_answer) if is_kind else None
    if str(schema.get("description", "")).startswith("Required."):
        return lambda side: True
    return None


def _is_entry_only(schema: Mapping[str, Any]) -> bool:
    text = str(schema.get("description", "")).lower()
    return text.startswith(("input only.", "[input only]"))


def _check_operation(value: Mapping[str, Any], path: str, report: Report) -> None:
    """google/longrunning/operations.proto: `result` is set if and only if it is done."""
    prefix = f"{path}." if path else ""
    if not value.get("name"):
        report(f"{prefix}name", "missing", None)
    results = [key for key in ("error", "response") if key in value]
    if len(results) != (1 if value.get("done") else 0):
        report(f"{prefix}done", "result inconsistent with it", results)


# Scalars.


def _field(description: Document, schema: Mapping[str, Any], parent: str, key: str) -> Check:
    inner = _compile(description, schema, parent)
    holder = schema.get("items", schema)
    if "enum" not in holder or not description.package:
        return inner
    names = _numbers(description.package, parent, key)
    allowed = frozenset(holder["enum"])

    def check_enum(value: Json, path: str, side: Side, report: Report) -> None:
        if names is not None and names.get(value) not in allowed:
            report(path, "unknown enum value", value)

    numbers = _array(check_enum) if "items" in schema else check_enum

    def check(value: Json, path: str, side: Side, report: Report) -> None:
        first = value[0] if isinstance(value, list) and value else value
        is_number = isinstance(first, int) and not isinstance(first, bool)
        (numbers if is_number and side.has_numbers else inner)(value, path, side, report)

    return check


# Where official clients that use enum numbers define their messages.
_TYPES: Mapping[str, str] = {
    "google.cloud.tpu.v2": "google.cloud.tpu_v2.types",
    "google.cloud.resourcemanager.v3": "google.cloud.resourcemanager_v3.types",
    "google.api.serviceusage.v1": "google.cloud.service_usage_v1.types",
    "google.cloud.billing.v1": "google.cloud.billing_v1.types",
}


def _numbers(package: str, message: str, key: str) -> Mapping[int, str] | None:
    """Enum names by number, if the message's descriptor is available."""
    from google.protobuf import descriptor_pool

    if package not in _TYPES:
        return None
    importlib.import_module(_TYPES[package])  # registers the messages
    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(f"{package}.{message}")
    except KeyError:
        return None
    enum_field = descriptor.fields_by_camelcase_name.get(key)
    if enum_field is None or enum_field.enum_type is None:
        return None
    return {value.number: value.name for value in enum_field.enum_type.values}


def _scalar(schema: Mapping[str, Any]) -> Check:
    kind, form = schema.get("type"), str(schema.get("format"))
    if kind == "boolean":
        return _expect(lambda value: isinstance(value, bool), "not a valid boolean")
    if kind == "number":
        return _expect(
            lambda value: isinstance(value, int | float) and not isinstance(value, bool),
            "not a valid number",
        )
    if kind == "integer":
        return _integer(form)
    if kind != "string":
        raise ValueError(f"unknown schema type: {kind}")
    return _string(schema, form)


def _expect(is_right: Callable[[Json], bool], rule: Rule) -> Check:
    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not is_right(value):
            report(path, rule, value)

    return check


def _integer(form: str) -> Check:
    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            report(path, "not a valid integer", value)
        elif (rule := _in_range(value, form)) is not None:
            report(path, rule, value)

    return check


def _string(schema: Mapping[str, Any], form: str) -> Check:
    allowed = frozenset(schema["enum"]) if "enum" in schema else None
    pattern = re.compile(schema["pattern"]) if "pattern" in schema else None
    is_formed = _FORMATS.get(form)
    # In responses, the only defaults that are constant are kinds.
    constant = schema.get("default") if "#" in str(schema.get("default", "")) else None

    def check(value: Json, path: str, side: Side, report: Report) -> None:
        if not isinstance(value, str):
            report(path, "not a valid string", value)
            return
        if allowed is not None and value not in allowed:
            report(path, "unknown enum value", value)
        if pattern is not None and not pattern.fullmatch(value):
            report(path, "does not match its pattern", value)
        if constant is not None and side.is_answer and value != constant:
            report(path, f"not {constant}", value)
        if is_formed is not None and (rule := is_formed(value)) is not None:
            report(path, rule, value)

    return check


_BITS = {"int32": (-(2**31), 2**31), "uint32": (0, 2**32), "int64": (-(2**63), 2**63)}
_BITS["uint64"] = (0, 2**64)


def _in_range(value: int, form: str) -> Rule | None:
    start, end = _BITS.get(form, (value, value + 1))
    return None if start <= value < end else f"not a valid {form}"


def _long(form: str) -> Callable[[str], Rule | None]:
    def check(text: str) -> Rule | None:
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            return f"not a valid {form}"
        return _in_range(int(text), form)

    return check


def _bytes(text: str) -> Rule | None:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return "not valid base64"
    return None


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


def _time(text: str) -> Rule | None:
    if not _TIME.fullmatch(text):
        return "not a valid timestamp"
    try:
        datetime.fromisoformat(text[:19])
    except ValueError:
        return "not a valid timestamp"
    return None


def _like(pattern: str, noun: str) -> Callable[[str], Rule | None]:
    compiled = re.compile(pattern)
    return lambda text: None if compiled.fullmatch(text) else f"not a valid {noun}"


_FORMATS: Mapping[str, Callable[[str], Rule | None]] = {
    "int64": _long("int64"),
    "uint64": _long("uint64"),
    "byte": _bytes,
    "google-datetime": _time,
    "date-time": _time,
    "date": _like(r"\d{4}-\d\d-\d\d", "date"),
    "google-duration": _like(r"-?\d+(?:\.\d{1,9})?s", "duration"),
    "google-fieldmask": _like(r"(?:[\w.*`-]+(?:,[\w.*`-]+)*)?", "field mask"),
}
