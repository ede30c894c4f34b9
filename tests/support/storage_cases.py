"""Cloud Storage's behavior as a table of cases, and how to run them against any server.

Each file of tests/cases/storage covers one subject and has cases by name:

    [only_one_writer_makes_an_object]
    source = "cloud.google.com/storage/docs/request-preconditions"
    bucket = {versioning = {enabled = true}}     # settings of the case's own bucket
    steps = [
      {do = "blob.upload", name = "o", data = "x", if_generation_match = 0, as = "first"},
      {do = "blob.upload", name = "o", data = "y", if_generation_match = 0, error = 412},
      {do = "blob.get", name = "o", has = {generation = "$first.generation", md5Hash = "-"}},
    ]

A step uses the official client, except `send`, which is a raw request. Keys that are not the
table's own are passed to the client's method. `as` names the result for later
steps: "$first.generation" as a value, {first.generation} inside a text.

In `has`, "-" means that a field is absent, "+" that it exists, "!…" that it has another
value. `error` is the status of a rejection; `says` a part of the message, not compared on
servers with their own messages. `testbench_differs` explains why storage-testbench deviates.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud import storage

from tests.support.storage_steps import Server, Step

__all__ = ["Case", "Server", "load", "run"]

FOLDER = Path(__file__).resolve().parents[1] / "cases" / "storage"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Case:
    """One behavior: steps in a separate bucket."""

    name: str
    source: str
    steps: list[dict[str, Any]]
    bucket: dict[str, Any]
    testbench_differs: str


def load() -> list[Case]:
    """Return all cases."""
    cases = []
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text("utf-8"))
        source = table.pop("source", "")
        for name, case in table.items():
            unknown = set(case) - {"source", "steps", "bucket", "testbench_differs"}
            assert not unknown, f"{path.name}: {name}: {unknown}"
            assert case.get("source", source), f"{path.name}: {name} names no source"
            cases.append(
                Case(
                    f"{path.stem}-{name}",
                    case.get("source", source),
                    case["steps"],
                    case.get("bucket", {}),
                    case.get("testbench_differs", ""),
                )
            )
    return cases


def run(case: Case, server: Server) -> None:
    """Run the case; raises AssertionError if the server deviates."""
    client = server.client()
    try:
        name = f"case-{os.getpid()}-{next(_numbers)}"
        bucket = storage.Bucket(client, name)
        for key, value in case.bucket.items():
            bucket._patch_property(key, value)
        bucket.create(location="europe-west4")
        known: dict[str, dict[str, Any]] = {"bucket": {"name": name}}
        for number, step in enumerate(case.steps, 1):
            where = f"{case.name}, step {number} ({step['do']} {step.get('name', '')})"
            Step(server, client, name, known, where).take(dict(step))
    finally:
        client._http.close()
