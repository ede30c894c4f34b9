"""Hundreds of malformed requests: each is rejected, and the state stays readable."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

P = "projects/local-project"
L = f"{P}/locations/europe-west4-a"
REQUESTS = [
    ("GET", f"/v2/{L}/nodes"),
    ("POST", f"/v2/{L}/nodes?nodeId=n"),
    ("PATCH", f"/v2/{L}/nodes/n"),
    ("PATCH", f"/v2/{L}/nodes/n?updateMask=labels,metadata"),
    ("POST", f"/v2/{L}/nodes/n:getGuestAttributes"),
    ("POST", f"/v2/{L}/nodes/n:stop"),
    ("GET", f"/v2/{L}/operations"),
    ("GET", f"/v2/{P}/locations"),
    ("POST", "/v3/projects"),
    ("GET", "/v3/projects:search"),
    ("PATCH", f"/v3/{P}"),
    ("POST", f"/v3/{P}:setIamPolicy"),
    ("POST", f"/v1/{P}/services:batchEnable"),
    ("GET", f"/v1/{P}/services"),
    ("POST", f"/compute/v1/{P}/global/networks"),
    ("PATCH", f"/compute/v1/{P}/global/networks/default"),
    ("POST", f"/compute/v1/{P}/global/firewalls"),
    ("PATCH", f"/compute/v1/{P}/global/firewalls/default-allow-ssh"),
    ("GET", f"/compute/v1/{P}/global/firewalls"),
    ("POST", f"/compute/v1/{P}/setCommonInstanceMetadata"),
    ("POST", f"/storage/v1/b?project={P.partition('/')[2]}"),
    ("PATCH", "/storage/v1/b/there"),
    ("PUT", "/storage/v1/b/there"),
    ("PUT", "/storage/v1/b/there/iam"),
    ("GET", "/storage/v1/b/there/o"),
    ("POST", "/storage/v1/b/there/o/o/compose"),
    ("POST", "/storage/v1/b/there/o/o/rewriteTo/b/there/o/p"),
    ("PATCH", "/storage/v1/b/there/o/o"),
    ("PUT", "/storage/v1/b/there/o/o"),
    ("GET", "/storage/v1/b/there/o/o?alt=media"),
    ("POST", "/upload/storage/v1/b/there/o?uploadType=resumable"),
    ("POST", "/upload/storage/v1/b/there/o?uploadType=multipart"),
    ("POST", "/batch/storage/v1"),
]
READS = [
    f"/v2/{L}/nodes",
    "/storage/v1/b?project=local-project",
    "/storage/v1/b/there",
    "/storage/v1/b/there/iam",
    "/storage/v1/b/there/o",
    "/storage/v1/b/there/o/o?alt=media",
    f"/compute/v1/{P}/global/firewalls",
    f"/compute/v1/{P}/global/networks",
    "/v3/projects:search",
]
KEYS = [
    "acceleratorConfig", "acceleratorType", "allowed", "autoCreateSubnetworks", "bindings",
    "contentType", "dataDisks", "destination", "displayName", "etag", "fingerprint",
    "generation", "iamConfiguration", "id", "items", "key", "labels", "lifecycle", "location",
    "members", "metadata", "name", "names", "network", "networkConfig", "networkConfigs",
    "node", "parent", "permissions", "policy", "priority", "projectId", "queryPath", "role",
    "routingConfig", "runtimeVersion", "schedulingConfig", "serviceAccount", "serviceIds",
    "softDeletePolicy", "sourceObjects", "sourceRanges", "state", "storageClass", "tags",
    "uniformBucketLevelAccess", "updateMask", "value", "workerIds",
]  # fmt: skip
QUERIES = [
    "$alt", "filter", "generation", "ifGenerationMatch", "labels.a", "matchGlob", "maxResults",
    "name", "node.name", "orderBy", "pageSize", "pageToken", "prefix", "project", "requestId",
    "startOffset", "updateMask",
]  # fmt: skip
VALUES = [
    None, True, -1, 0, 2**70, 1e308, "", "x", "\ud800", "\0", "é" * 10, P, [], {}, [1], {"a": 1},
    {"@type": "x"}, [[[]]], "default", "a/b", "..", "true", "2020-01-01T00:00:00Z",
]  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> Any:
    if depth < 3 and chance.random() < 0.4:
        return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(3)}
    return chance.choice(VALUES)


@pytest.mark.malformed
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5))]
)
def test_malformed_requests_never_break_the_server(cloud: Any, seed: int) -> None:
    chance = random.Random(seed)

    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": "there"})
    cloud.request("POST", "/upload/storage/v1/b/there/o?name=o", data=b"data")
    for _ in range(300):
        verb, path = chance.choice(REQUESTS)
        body = {chance.choice(KEYS): value(chance) for _ in range(chance.randint(0, 5))}
        if "nodes?" in path and chance.random() < 0.5:
            body.update(acceleratorType="v3-8", runtimeVersion="tpu-ubuntu2204-base")
        if chance.random() < 0.5:
            body["name"] = f"name-{chance.randint(0, 10**6)}"
        query = {}
        if chance.random() < 0.4:
            text = str(value(chance)).encode("utf-8", "replace").decode()
            query[chance.choice(QUERIES)] = text
        data = json.dumps(body) if chance.random() < 0.95 else chance.randbytes(20)
        answer = cloud.request(
            verb,
            path,
            params=query,
            data=None if verb == "GET" else data,
            headers={"Content-Type": "multipart/related; boundary=x"},
        )
        request = (verb, path, query, data, answer.text)
        assert answer.status_code < 500 or answer.status_code == 501, request
    for path in READS:
        assert cloud.request("GET", path).status_code == 200, path
