"""What Google's description of Cloud Storage has is used, or is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tpuctl.emulator.wire.discovery import documents

pytestmark = pytest.mark.malformed  # each request tries one parameter or field

BUCKET = "b-of-all"
# Values that ask for nothing, or that the emulator takes; anything else is refused.
PARAMETERS = {
    *("contentEncoding", "delimiter", "destinationKmsKeyName", "enableObjectRetention"),
    *("endOffset", "generation", "ifGenerationMatch", "ifGenerationNotMatch"),
    *("ifMetagenerationMatch", "ifMetagenerationNotMatch", "ifSourceGenerationMatch"),
    *("ifSourceGenerationNotMatch", "ifSourceMetagenerationMatch"),
    *("ifSourceMetagenerationNotMatch", "includeFoldersAsPrefixes", "includeTrailingDelimiter"),
    *("kmsKeyName", "matchGlob", "maxBytesRewrittenPerCall", "maxResults", "name"),
    *("overrideUnlockedRetention", "pageToken", "prefix", "project", "projection"),
    *("returnPartialSuccess", "rewriteToken", "softDeleted", "sourceGeneration", "startOffset"),
    *("destinationPredefinedAcl", "dropContextGroups", "filter", "predefinedAcl"),
    *("predefinedDefaultObjectAcl", "userProject", "versions"),
}
METHODS = (
    *(f"buckets.{name}" for name in ("insert", "patch", "update", "get", "list")),
    *(f"objects.{name}" for name in ("insert", "patch", "update", "rewrite", "copy", "compose")),
    *(f"objects.{name}" for name in ("get", "list", "move", "restore", "delete")),
)
REFUSED_FIELDS = {
    "buckets": {
        "ipFilter": {"mode": "Enabled"},
        "softDeletePolicy": {"hardDeletePause": {"enabled": True}},
    },
}
PATHS = {
    "buckets.insert": f"POST /storage/v1/b?project=local-project&name={BUCKET}",
    "buckets.patch": f"PATCH /storage/v1/b/{BUCKET}?",
    "buckets.update": f"PUT /storage/v1/b/{BUCKET}?",
    "buckets.get": f"GET /storage/v1/b/{BUCKET}?",
    "buckets.list": "GET /storage/v1/b?project=local-project",
    "objects.insert": f"POST /upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=o",
    "objects.patch": f"PATCH /storage/v1/b/{BUCKET}/o/o?",
    "objects.update": f"PUT /storage/v1/b/{BUCKET}/o/o?",
    "objects.rewrite": f"POST /storage/v1/b/{BUCKET}/o/o/rewriteTo/b/{BUCKET}/o/o?",
    "objects.copy": f"POST /storage/v1/b/{BUCKET}/o/o/copyTo/b/{BUCKET}/o/o?",
    "objects.compose": f"POST /storage/v1/b/{BUCKET}/o/o/compose?",
    "objects.get": f"GET /storage/v1/b/{BUCKET}/o/o?",
    "objects.list": f"GET /storage/v1/b/{BUCKET}/o?",
    "objects.move": f"POST /storage/v1/b/{BUCKET}/o/o/moveTo/o/p?",
    "objects.restore": f"POST /storage/v1/b/{BUCKET}/o/o/restore?",
    "objects.delete": f"DELETE /storage/v1/b/{BUCKET}/o/o?",
}


@pytest.fixture
async def stocked(cloud: Any) -> Any:
    def run() -> None:
        cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": BUCKET})
        upload = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=o"
        assert cloud.request("POST", upload, data=b"x").ok

    await asyncio.to_thread(run)
    return cloud


def described(method: str) -> dict[str, Any]:
    resource, _, name = method.partition(".")
    description: dict[str, Any] = documents.read("storage.v1")["resources"][resource]["methods"][
        name
    ]
    return description


def refused_parameters() -> Iterator[tuple[str, str]]:
    for method in METHODS:
        for name, parameter in described(method)["parameters"].items():
            if name not in PARAMETERS and parameter["location"] == "query":
                yield method, name


def test_some_parameters_are_refused() -> None:
    assert set(refused_parameters()) >= {
        ("objects.get", "restoreToken"),
        ("objects.restore", "copySourceAcl"),
    }


def test_parameters_are_used_or_refused_by_name(stocked: Any) -> None:
    for method, name in refused_parameters():
        verb, _, path = PATHS[method].partition(" ")
        value = "true" if name in ("softDeleted", "copySourceAcl") else "publicRead"
        answer = stocked.request(verb, f"{path}&{name}={value}", json={})
        assert answer.status_code == 501, (method, name)
        assert f"storage.{method} with {name} is" in answer.json()["error"]["message"]
    # What asks for nothing, or is unknown, is accepted.
    for query in ("restoreToken=", "tensorstore=1"):
        assert stocked.request("PATCH", f"/storage/v1/b/{BUCKET}?{query}", json={}).ok


def test_fields_are_used_or_refused_by_name(stocked: Any) -> None:
    for method in METHODS:
        kind = method.partition(".")[0]
        if "request" not in described(method):
            continue
        verb, _, path = PATHS[method].partition(" ")
        for field, value in REFUSED_FIELDS.get(kind, {}).items():
            answer = stocked.request(verb, path, json={field: value})
            assert answer.status_code == 501, (method, field, answer.text)
            assert f"storage.{method} with {field}" in answer.text


def test_every_field_of_the_description_is_known(stocked: Any) -> None:
    """A resource as it was read is accepted by an update, and every other field of Google's
    description is stored and returned, or refused."""
    values = {"string": "s", "boolean": True, "integer": 1, "int64": "1"}
    values |= {"date": "2026-01-01", "date-time": "2130-01-01T00:00:00Z"}

    def value(schema: dict[str, Any]) -> Any:
        if schema.get("type") == "object" and "properties" in schema:
            return {name: value(inner) for name, inner in schema["properties"].items()}
        if schema.get("type") == "array":
            return [value(schema["items"])]
        return values.get(schema.get("format"), values.get(schema.get("type", ""), {"a": "b"}))

    schemas = documents.read("storage.v1")["schemas"]
    for kind, path in (("Bucket", f"b/{BUCKET}"), ("Object", f"b/{BUCKET}/o/o")):
        before = stocked.request("GET", f"/storage/v1/{path}?projection=full").json()
        assert stocked.request("PUT", f"/storage/v1/{path}", json=before).ok
        for name, schema in schemas[kind]["properties"].items():
            answer = stocked.request("PATCH", f"/storage/v1/{path}", json={name: value(schema)})
            is_kept = name in before or name in OUTPUT_ONLY
            is_known = answer.status_code in (400, 501) or name in answer.json() or is_kept
            assert is_known, (kind, name, answer.text)


# Set by the service alone, and absent from the resources of the test.
OUTPUT_ONLY = {
    *("componentCount", "customerEncryption", "hardDeleteTime", "kmsKeyName", "objectRetention"),
    *("owner", "restoreToken", "retentionExpirationTime", "satisfiesPZI", "satisfiesPZS"),
    *("softDeleteTime", "timeDeleted"),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-goog-acl", "public-read"),
        ("x-goog-metadata-directive", "REPLACE"),
        ("x-goog-object-lock-mode", "GOVERNANCE"),
        ("x-goog-content-length-range", "0,1"),
    ],
)
def test_headers_of_xml_uploads_are_used_or_refused_by_name(
    stocked: Any, name: str, value: str
) -> None:
    for verb, path in (("PUT", f"/{BUCKET}/p"), ("POST", f"/{BUCKET}/p?uploads")):
        answer = stocked.request(verb, path, data=b"", headers={name: value})
        assert answer.status_code == 501
        assert name in answer.text
    assert stocked.request("GET", f"/storage/v1/b/{BUCKET}/o/p").status_code == 404
