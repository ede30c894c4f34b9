"""Kinds and lists of every Compute Engine collection, including two-word names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import compute_v1

from tests.support.discovery_documents import document
from tests.support.locations import PROJECT, REGION
from tpuctl.emulator.compute import service
from tpuctl.emulator.compute.api import COLLECTIONS
from tpuctl.emulator.compute.collection import Collection
from tpuctl.emulator.compute.resource_policies import ResourcePolicies
from tpuctl.emulator.wire.registry import Caller

assert service  # importing it imports all collections


def collections(base: type[Collection] = Collection) -> Iterator[type[Collection]]:
    for collection in base.__subclasses__():
        if collection.message:
            yield collection
        yield from collections(collection)


@pytest.mark.parametrize("collection", list(collections()))
def test_kind_matches_discovery_document(collection: type[Collection]) -> None:
    schemas = document("compute.v1").schemas
    for suffix in ("", "List", "AggregatedList"):
        schema = schemas.get(f"{collection.message}{suffix}")
        if schema is not None:  # global collections have no aggregated list
            assert collection.type_of() + suffix == schema["properties"]["kind"]["default"]


async def test_served_collections_match_api_list(cloud: Any) -> None:
    service = cloud.server.registry.service("compute")
    assert {*service.handlers} == {*COLLECTIONS}, "tpuctl/emulator/compute/api.py"


async def test_two_word_collection_has_camel_case_kind(cloud: Any) -> None:
    policies = ResourcePolicies(cloud.server.registry.service("compute").context)
    name = f"projects/{PROJECT}/regions/{REGION}/resourcePolicies/nightly"
    policies.finish_insert({"target": name, "row": {"name": "nightly"}})
    caller = Caller("owner@example.com")
    location = {"project": PROJECT, "region": REGION}
    get_request = compute_v1.GetResourcePolicyRequest(resource_policy="nightly", **location)
    assert (await policies.get(get_request, caller)).kind == "compute#resourcePolicy"
    list_request = compute_v1.ListResourcePoliciesRequest(**location)
    assert (await policies.list(list_request, caller)).kind == "compute#resourcePolicyList"
    everywhere = compute_v1.AggregatedListResourcePoliciesRequest(project=PROJECT)
    response = await policies.aggregated_list(everywhere, caller)
    assert response.kind == "compute#resourcePolicyAggregatedList"
    assert [each.name for each in response.items[f"regions/{REGION}"].resource_policies] == [
        "nightly"
    ]
