"""Batch requests, which gcloud sends to create several instances."""

from __future__ import annotations

import json
from typing import Any

BASE = "/projects/local-project/zones/europe-west4-a/instances"
BOUNDARY = "===============1=="


def as_part(number: int, verb: str, path: str, body: str = "") -> str:
    lines = [
        f"--{BOUNDARY}",
        "Content-Type: application/http",
        "MIME-Version: 1.0",
        "Content-Transfer-Encoding: binary",
        f"Content-ID: <id+{number}>",
        "",
        f"{verb} {path}?alt=json HTTP/1.1",
        "Content-Type: application/json",
        f"content-length: {len(body)}",
        "Host: 127.0.0.1",
        "",
        body,
    ]
    return "\n".join(lines)


def test_batch_answers_each_part_separately(engine: Any) -> None:
    disk = {
        "boot": True,
        "initializeParams": {
            "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
        },
    }
    row = {
        "name": "made",
        "machineType": "zones/europe-west4-a/machineTypes/e2-small",
        "disks": [disk],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    parts = [
        as_part(1, "POST", BASE, json.dumps(row)),
        as_part(2, "GET", f"{BASE}/missing"),
        as_part(3, "GET", "/nothing"),
    ]
    body = "\n".join([*parts, f"--{BOUNDARY}--"])
    headers = {"Content-Type": f'multipart/mixed; boundary="{BOUNDARY}"'}
    answer = engine.cloud.request("POST", "/batch/compute/v1", data=body, headers=headers)
    assert answer.status_code == 200
    boundary = answer.headers["Content-Type"].partition("boundary=")[2]
    first, second, third = answer.text.split(f"--{boundary}")[1:4]
    assert "Content-ID: <response-id+1>" in first
    assert "HTTP/1.1 200 OK" in first
    operation = json.loads(first[first.index("{") : first.rindex("}") + 1])
    assert operation["kind"] == "compute#operation"
    assert "Content-ID: <response-id+2>" in second
    assert "HTTP/1.1 404 Not Found" in second
    assert "instances/missing' was not found" in second
    assert "HTTP/1.1 404 Not Found" in third
    instance = engine.get("made")
    assert instance.name == "made"
