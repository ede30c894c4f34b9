"""Generator of malformed requests from Google's discovery documents, by seed.

The same seed generates the same requests. Each starts as a valid request and is then corrupted
in one to three ways.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.discovery_documents import DOCUMENTS, Described, document
from tests.support.malformed_bytes import DISTORTIONS, Chance, HttpRequest, framed

# Names of existing resources in the local cloud, by collection or parameter.
THERE: Mapping[str, str] = {
    **dict.fromkeys(("v1", "v1beta1"), "projects"),  # Service Usage's flat paths
    **dict.fromkeys(("v1Id1", "v1beta1Id1"), "local-project"),
    "projects": "local-project",
    "project": "local-project",
    "projectId": "local-project",
    "locations": "europe-west4-a",
    "zone": "europe-west4-a",
    "zones": "europe-west4-a",
    "region": "europe-west4",
    "nodes": "n",
    "queuedResources": "q",
    "services": "tpu.googleapis.com",
    "serviceAccounts": "robot@local-project.iam.gserviceaccount.com",
    "organizations": "400000000001",
    "folders": "500000000001",
    "billingAccounts": "010CA1-010CA1-010CA1",
    "bucket": "there",
    "sourceBucket": "there",
    "destinationBucket": "there",
    "object": "o",
    "sourceObject": "o",
    "network": "default",
    "firewall": "default-allow-ssh",
    "instance": "i",
    "disk": "d",
    "acceleratorTypes": "v3-8",
    "machineType": "n1-standard-1",
}
ODD_TEXTS: Sequence[str] = (
    *("", " ", "\0", "\ud800", "é" * 10, "\u202e", "%", "%zz", "..", "../..", "/", "a/b", "-", "_"),
    *("null", "true", "NaN", "1e999", "-1", "0", "2147483648", "9" * 40, "0x10", "١٢", "1.5"),
    *("2020-13-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9999999999Z", "-1s"),
    *("projects/", "projects/-", "projects//locations/-/nodes/x", "x" * 300, "x" * 70_000, "*"),
    *("a" * 64, "A", "ünï", "'; DROP TABLE nodes; --", "${x}", "\r\nX: y", "=", "a=b", "a:b:c"),
)
ODD_VALUES: Sequence[Any] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**70, -(2**70), 1.5, 1e308, [], {}, [[]], [None]),
    *({"": 1}, {"@type": "x"}, {"a": {"b": {"c": []}}}, [{}], [1, "a", None], {"key": None}),
)


@cache
def described_methods() -> Sequence[Described]:
    """All methods of all APIs with a document."""
    return [method for name in DOCUMENTS for method in document(name).methods]


def requests_of(seed: int, count: int, token: str) -> Iterator[HttpRequest]:
    """Consecutive seeds iterate over the methods, so that all are covered."""
    methods = list(described_methods())
    Chance(0).shuffle(methods)
    for number in range(seed * count, (seed + 1) * count):
        chance = Chance(number)
        # Most requests are for emulated methods: the others all return "not implemented".
        method = methods[number // 4 % len(methods)]
        if number % 4:
            method = chance.choice(_emulated())
        yield Maker(chance, method).make(token)


@cache
def _emulated() -> Sequence[Described]:
    emulated = re.compile(
        r"tpu\.|cloudresourcemanager\.(?:projects|operations)|serviceusage\.|iam\.projects\.(?:serv|ro)"
        r"|cloudbilling\.(?:projects|billingAccounts)|storage\.(?:buckets|objects)"
        r"|secretmanager\.projects\.secrets\.|orgpolicy\.projects\.(?:policies|constraints)\."
        r"|compute\.(?:instances|disks|networks|subnetworks|firewalls|addresses|projects|images"
        r"|zoneOperations|globalOperations|machineTypes|zones|regions)\."
    )
    return [method for method in described_methods() if emulated.match(method.id)]


class Maker:
    """Generates one request."""

    def __init__(self, chance: Chance, method: Described) -> None:
        self._chance = chance
        self._method = method

    def make(self, token: str) -> HttpRequest:
        chance, method = self._chance, self._method
        headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}"}
        if method.request or method.verb in ("POST", "PUT", "PATCH"):
            headers["Content-Type"] = "application/json"
        body = self._body(method.request) if method.request else None
        query = self._query()
        path = "/" + self._path()
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            spoil = chance.choice((self._spoil_body, self._spoil_query))
            body, query = spoil(body, query)
        data = b"" if body is None else _encode(body)
        if method.is_upload:
            query["uploadType"] = chance.choice(("media", "multipart", "resumable", "other", ""))
        request = HttpRequest(
            method.id,
            method.verb,
            path + (f"?{urlencode(query, errors='replace')}" if query else ""),
            tuple(headers.items()),
            data,
        )
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
            request = chance.choice(DISTORTIONS)(chance, request)
        return framed(chance, request)

    # Valid parts.

    def _path(self) -> str:
        """The flat path, with variables named after collections."""

        def fill(match: re.Match[str]) -> str:
            name = match[1] if self._method.document.is_legacy else match[1].removesuffix("Id")
            return quote(self._name(name), errors="replace", safe="@")

        template = self._method.path
        if "{+" in template:
            template = self._method.document.text["servicePath"] + self._method.text["flatPath"]
        return re.sub(r"\{(\w+)\}", fill, template)

    def _name(self, collection: str) -> str:
        if self._chance.random() < (0.4 if self._method.verb == "DELETE" else 0.8):
            return THERE.get(collection, "x")
        return self._chance.choice((*ODD_TEXTS[:60], "absent", "x1")) or "x"

    def _query(self) -> dict[str, Any]:
        query: dict[str, Any] = {}
        for name, parameter in self._method.parameters.items():
            if parameter["location"] == "query" and (
                parameter.get("required") or self._chance.random() < 0.2
            ):
                query[name] = self._text(parameter, name)
        return query

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        if "enum" in schema:
            return str(self._chance.choice(schema["enum"]))
        kind = schema.get("type")
        if kind == "boolean":
            return self._chance.choice(("true", "false"))
        if kind in ("integer", "number") or schema.get("format") in ("int64", "uint64"):
            return str(self._chance.choice((0, 1, 2, 10, 500)))
        return THERE.get(name, self._chance.choice(("x", "name", "labels", "a,b", "1")))

    def _body(self, schema: str, depth: int = 0) -> dict[str, Any]:
        body: dict[str, Any] = {}
        description = self._method.document.schemas[schema]
        for name, property_schema in description.get("properties", {}).items():
            is_needed = "required" in property_schema.get("annotations", {}) or name in (
                "name",
                "key",
            )
            if is_needed or self._chance.random() < (0.5, 0.3, 0.2, 0.0)[min(depth, 3)]:
                body[name] = self._value(property_schema, name, depth + 1)
        return body

    def _value(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        if "$ref" in schema:
            return self._body(schema["$ref"], depth) if depth < 4 else {}
        kind = schema.get("type")
        if kind == "array":
            return [
                self._value(schema["items"], name, depth) for _ in range(self._chance.randint(0, 2))
            ]
        if kind == "object":
            if "properties" in schema:
                inner = schema["properties"].items()
                return {key: self._value(item, key, depth + 1) for key, item in inner}
            return {"a": "b"}
        if kind == "boolean":
            return self._chance.random() < 0.5
        if kind in ("integer", "number"):
            return self._chance.choice((0, 1, 8, 100))
        if schema.get("format") in ("google-datetime", "date-time"):
            return "2024-05-01T10:00:00Z"
        if schema.get("format") == "google-duration":
            return "3600s"
        if schema.get("format") == "byte":
            return "AAAA"
        return self._text(schema, name)

    # Corruption.

    def _odd(self) -> Any:
        chance = self._chance
        if chance.random() < 0.5:
            return chance.choice(ODD_TEXTS)
        if chance.random() < 0.1:
            return {
                chance.choice(ODD_TEXTS): copy.deepcopy(chance.choice(ODD_VALUES)) for _ in range(5)
            }
        return copy.deepcopy(chance.choice(ODD_VALUES))

    def _spoil_body(self, body: Any, query: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not isinstance(body, dict) or not body or self._chance.random() < 0.1:
            return self._odd(), query
        holder: Any = body
        key: Any = self._chance.choice(list(body))
        while isinstance(holder[key], dict | list) and holder[key] and self._chance.random() < 0.7:
            holder = holder[key]
            key = self._chance.choice(
                list(holder) if isinstance(holder, dict) else range(len(holder))
            )
        way = self._chance.random()
        if way < 0.7:
            holder[key] = self._odd()
        elif isinstance(holder, dict) and way < 0.85:
            holder[self._chance.choice(("unknown", "", "@type", "é", "x" * 5000))] = self._odd()
        else:
            del holder[key]
        return body, query

    def _spoil_query(self, body: Any, query: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        names = [
            name
            for name, parameter in self._method.parameters.items()
            if parameter["location"] == "query"
        ]
        odd = ("unknown", "alt", "$alt", "fields", "pageSize", "pageToken", "maxResults", "filter")
        name = self._chance.choice((*names, *odd, "updateMask", "orderBy", "a.b.c", "prettyPrint"))
        if query and self._chance.random() < 0.2:
            query.pop(self._chance.choice(list(query)))
        query[name] = str(self._odd()).replace("\ud800", "?")
        return body, query


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()
