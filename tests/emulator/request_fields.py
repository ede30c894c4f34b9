"""What the local cloud does with each field of a request: kept, used, refused, or ignored.

`request_fields.toml` says how each method is called.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from tests.support.discovery_documents import document

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
USED: list[str] = TABLE.pop("used")["all"]
ELSEWHERE: Mapping[str, str] = TABLE.pop("elsewhere")
RECORD = Path(__file__).parents[1] / "recorded" / "request_fields.json"
_OUTPUT_ONLY = re.compile(r"\W*output only|\[Output Only\]|A reserved field", re.IGNORECASE)
# The key of a map, and the name of what is probed.
_KEY = "probe"

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A field of a request's body, without those of its own, or a query parameter."""

    path: tuple[str | int, ...]  # 0 for the only item of a list
    schema: Schema
    is_in_body: bool = True

    @property
    def name(self) -> str:
        """Without the indexes of lists, as "disks.source"; the key of a map is a star, and a query
        parameter begins with a question mark."""
        if not self.is_in_body:
            return f"?{self.path[0]}"
        parts = [part for part in self.path if not isinstance(part, int)]
        return ".".join("*" if part == _KEY else str(part) for part in parts)

    @property
    def value(self) -> Any:
        """A value of the field's type, other than its default."""
        kind, form = self.schema.get("type"), self.schema.get("format")
        if "enum" in self.schema:
            return self.schema["enum"][min(1, len(self.schema["enum"]) - 1)]
        of_format = {
            "int64": "1",
            "uint64": "1",
            "byte": "eA==",
            "google-duration": "600s",
            "google-datetime": "2030-01-01T00:00:00Z",
            "google-fieldmask": "labels",
        }
        of_kind = {"boolean": True, "integer": 1, "number": 0.5, "string": _KEY}
        return of_format.get(form or "", of_kind.get(kind or "", {_KEY: _KEY}))


def described(method: str) -> Mapping[str, Any]:
    """The description of a method such as "tpu.v2:projects.locations.nodes.create"."""
    api, _, path = method.partition(":")
    part: Any = document(api).text
    *resources, last = path.split(".")
    for resource in resources:
        part = part["resources"][resource]
    description: Mapping[str, Any] = part["methods"][last]
    return description


def fields_of(method: str) -> Iterator[Field]:
    """What a request of a method may have, except for what the table's request has already."""
    api, entry, description = method.partition(":")[0], TABLE[method], described(method)
    for name, parameter in description.get("parameters", {}).items():
        if parameter["location"] == "query" and f"{name}=" not in entry["request"]:
            yield Field((name,), parameter, is_in_body=False)
    if "request" in description:
        for path, schema in _leaves(document(api).schemas, description["request"], (), ()):
            if _at(entry["body"], path) is None:
                yield Field(path, schema)


def _leaves(
    schemas: Schema, schema: Schema, path: tuple[str | int, ...], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    if schema.get("readOnly") or _OUTPUT_ONLY.match(schema.get("description", "")):
        return
    reference = schema.get("$ref", "")
    if reference in above:
        return
    if reference:
        schema, above = schemas[reference], (*above, reference)
    if "properties" in schema:
        for name, inner in schema["properties"].items():
            yield from _leaves(schemas, inner, (*path, name), above)
    elif schema.get("type") == "array":
        yield from _leaves(schemas, schema["items"], (*path, 0), above)
    elif isinstance(schema.get("additionalProperties"), Mapping):
        yield from _leaves(schemas, schema["additionalProperties"], (*path, _KEY), above)
    else:
        yield path, schema


def address_of(method: str) -> str:
    """The path of a method in the project of the tests."""
    text = document(method.partition(":")[0]).text
    description = described(method)
    path = description.get("flatPath") or description["path"]
    places = {
        "project": "local-project",
        "projectsId": "local-project",
        "zone": "us-central1-a",
        "locationsId": "us-central1-a",
        "region": "us-central1",
    }
    path = re.sub(r"\{\+?(\w+)\}", lambda match: places.get(match[1], "x1"), path)
    return f"/{text['servicePath']}{path}"


class Prober:
    """Calls methods with one field more than they need."""

    def __init__(self, cloud: Any) -> None:
        self._cloud = cloud
        self._numbers = count(1)

    def outcome(self, method: str, field: Field) -> str:
        """ "kept", "used", "refused", or what happened instead."""
        entry, number = TABLE[method], next(self._numbers)
        self._prepare(entry, number)
        status, text = self._send(entry, number, field)
        if status == 501:
            names = [str(part).lower() for part in field.path]
            message = text.lower().replace("_", "")
            is_named = any(name in message for name in names)
            return "refused" if is_named else f"501: {text}"
        if status == 200 and self._is_kept(entry, number, field):
            return "kept"
        plain = field.name.removeprefix("?")
        is_used = any(fnmatchcase(plain, name) for name in (*entry.get("used", ()), *USED))
        # An error of another kind is about the value.
        return (
            "used" if is_used or status in (400, 403, 404, 409, 412) else f"ignored: {text[:200]}"
        )

    def call(self, method: str, number: int) -> None:
        """A request as it is in the table, after those that it needs."""
        entry = TABLE[method]
        self._prepare(entry, number)
        status, text = self._send(entry, number)
        assert status == 200, (method, text)

    def _prepare(self, entry: Any, number: int) -> None:
        if "clear" in entry:
            self._cloud.request("DELETE", entry["clear"])
        before = entry.get("before", [])
        for method in [before] if isinstance(before, str) else before:
            self.call(method, number)

    def _send(self, entry: Any, number: int, field: Field | None = None) -> tuple[int, str]:
        top = str(field.path[0]) if field is not None else ""
        text = json.dumps([entry["request"], entry["body"]])
        for name, value in (("n", number), ("byte", number % 250), ("top", top)):
            text = text.replace(f"{{{name}}}", str(value))
        request, body = json.loads(text)
        if field is not None and field.is_in_body:
            _put(body, field.path, field.value)
        elif field is not None:
            request += f"{'&' if '?' in request else '?'}{field.path[0]}={field.value}"
        verb, _, path = request.partition(" ")
        response = self._cloud.request(verb, path, json=body)
        answer = response.json()
        if response.status_code == 200 and "selfLink" in answer and "status" in answer:
            answer = self._finished(answer)  # of Compute Engine
        error = answer.get("error", {})
        errors = error.get("errors", [])
        if "httpErrorStatusCode" in answer or (errors and "code" not in error):
            return int(answer.get("httpErrorStatusCode", 400)), json.dumps(error)
        return response.status_code, error.get("message", "")

    def _finished(self, operation: Any) -> Any:
        path = "/" + operation["selfLink"].split("/", 3)[3]
        while operation["status"] != "DONE":
            operation = self._cloud.request("POST", f"{path}/wait").json()
        return operation

    def _is_kept(self, entry: Any, number: int, field: Field) -> bool:
        path = field.path
        if path[0] == entry.get("root"):
            path = path[1:]
        within = entry.get("within", ())
        path = (*([within] if isinstance(within, str) else within), *path)
        read = entry["read"].replace("{n}", str(number))
        verb, _, address = read.rpartition(" ")
        resource = self._cloud.request(verb or "GET", address).json()
        returned = _at(resource, path)
        is_link = isinstance(returned, str) and returned.endswith(f"/{field.value}")
        return returned == field.value or is_link


def _put(body: Any, path: tuple[str | int, ...], value: Any) -> None:
    here = body
    for part, following in pairwise(path):
        empty: Any = [] if following == 0 else {}
        if isinstance(part, int):
            if not here:
                here.append(empty)
            here = here[0]
        else:
            here = here.setdefault(part, empty)
    if isinstance(path[-1], int):
        here[:] = [value]
    else:
        here[path[-1]] = value


def _at(body: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            return None
    return copy.copy(body)
