"""No field of Google's descriptions is ignored in silence: it is kept and returned, used, or
refused by its name. Those of Cloud Storage: `test_storage_unsupported.py`."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.request_fields import (
    ELSEWHERE,
    RECORD,
    TABLE,
    USED,
    Field,
    Prober,
    address_of,
    described,
    fields_of,
)
from tests.support.discovery_documents import document
from tpuctl.emulator.wire.discovery.method_list import list_methods
from tpuctl.emulator.wire.routes import Router

pytestmark = pytest.mark.malformed  # each request has one field that it would not have
SAMPLE = 120
OUTCOMES = ("kept", "used", "refused")
APIS = ("tpu", "compute", "iam", "secretmanager", "cloudresourcemanager", "orgpolicy")


@pytest.fixture
def prober(cloud: Any) -> Prober:
    cloud.enable(*APIS)
    return Prober(cloud)


def outcomes(prober: Prober, fields: list[tuple[str, Field]]) -> Mapping[tuple[str, str], str]:
    return {(method, field.name): prober.outcome(method, field) for method, field in fields}


ALL = [(method, field) for method in TABLE for field in fields_of(method)]


def test_sampled_fields_are_not_ignored(prober: Prober) -> None:
    observed = outcomes(prober, random.sample(ALL, SAMPLE))
    assert {place: text for place, text in observed.items() if text not in OUTCOMES} == {}
    record = json.loads(RECORD.read_text("utf-8"))
    # Whether a name is kept, or not found, depends on what was created before.
    accepted = ("kept", "used")
    assert {
        (method, name): outcome
        for (method, name), outcome in observed.items()
        if not any(
            name in record[method][each]
            for each in (accepted if outcome in accepted else [outcome])
        )
    } == {}


@pytest.mark.soak
def test_every_method_with_fields_is_asked(cloud: Any) -> None:
    folder = Path(__file__).parent
    assert [file for file in ELSEWHERE.values() if not (folder / file).exists()] == []
    methods = [method for method in emulated_methods(cloud) if has_fields(method)]
    assert len(methods) > 100
    patterns = (*TABLE, *ELSEWHERE)
    assert [m for m in methods if not any(fnmatchcase(m, each) for each in patterns)] == []
    assert set(TABLE) <= set(methods)


def emulated_methods(cloud: Any) -> Iterator[str]:
    router = Router(cloud.server.registry)
    for verb, path, name in list_methods():
        api, _, method = name.partition(":")
        sample = re.sub(r"^(/v[^/]+)/\*/", r"\1/projects/", path).replace("*", "x1")
        if api != "storage.v1" and router.serves(verb, sample):
            yield f"{api}:{method.partition('.')[2]}"


def has_fields(method: str) -> bool:
    """Whether it has a body; the parameters of lists are asked for all together."""
    schema = described(method).get("request", {}).get("$ref")
    return bool(schema and document(method.partition(":")[0]).schemas[schema].get("properties"))


@pytest.mark.soak
def test_no_parameter_of_a_list_is_ignored(cloud: Any) -> None:
    """With a value that is none: it is refused, an error, or one of those that are used."""
    cloud.enable(*APIS)
    ignored = set()
    for method in emulated_methods(cloud):
        description = described(method)
        if description["httpMethod"] != "GET":
            continue
        address = address_of(method)
        if cloud.request("GET", address).status_code != 200:
            continue  # of a resource that is not there
        for name, parameter in description.get("parameters", {}).items():
            if parameter["location"] == "query" and name not in USED:
                value = Field((name,), parameter).value
                status = cloud.request("GET", f"{address}?{name}={value}").status_code
                if status not in (400, 501):
                    ignored.add((method, name))
    assert ignored == set()


@pytest.mark.soak
def test_no_field_is_ignored(prober: Prober) -> None:
    observed = outcomes(prober, ALL)
    assert {place: text for place, text in observed.items() if text not in OUTCOMES} == {}
    record = {
        method: {
            outcome: sorted(
                name for (each, name), text in observed.items() if (each, text) == (method, outcome)
            )
            for outcome in OUTCOMES
        }
        for method in TABLE
    }
    if "TPUCTL_WRITE_METHODS" in os.environ:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    assert json.loads(RECORD.read_text("utf-8")) == record
