"""What every collection of Compute Engine says of itself, also one whose name has two words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import compute_v1

from tests.support.descriptions import document
from tests.support.places import PROJECT, REGION
from tpuctl.emulator.compute import service
from tpuctl.emulator.compute.api import COLLECTIONS
from tpuctl.emulator.compute.collection import Collection, Row
from tpuctl.emulator.wire.registry import Caller

assert service  # whoever imports it has imported all collections


class ResourcePolicies(Collection):
    """The smallest collection of two words that Google has, as one might be added."""

    kind, message, plural = "compute.resourcePolicies", "ResourcePolicy", "resourcePolicies"
    field, scope = "resource_policy", "regions"

    def complete(self, name: str, row: Row) -> Row:
        return row


def collections(base: type[Collection] = Collection) -> Iterator[type[Collection]]:
    for collection in base.__subclasses__():
        if collection.message:
            yield collection
        yield from collections(collection)


@pytest.mark.parametrize("collection", list(collections()))
def test_kind_is_the_one_in_googles_description(collection: type[Collection]) -> None:
    schemas = document("compute.v1").schemas
    for suffix in ("", "List", "AggregatedList"):
        schema = schemas.get(f"{collection.message}{suffix}")
        if schema is not None:  # what is global has no list over scopes
            assert collection.type_of() + suffix == schema["properties"]["kind"]["default"]


async def test_collections_that_are_served_are_those_the_api_names(cloud: Any) -> None:
    service = cloud.server.world.service("compute")
    assert {*service.handlers} == {*COLLECTIONS}, "tpuctl/emulator/compute/api.py"


async def test_resources_and_lists_of_two_words_have_that_kind(cloud: Any) -> None:
    policies = ResourcePolicies(cloud.server.world.service("compute").context)
    name = f"projects/{PROJECT}/regions/{REGION}/resourcePolicies/nightly"
    policies.finish_insert({"target": name, "row": {"name": "nightly"}})
    caller = Caller("owner@example.com")
    place = {"project": PROJECT, "region": REGION}
    one = compute_v1.GetResourcePolicyRequest(resource_policy="nightly", **place)
    assert (await policies.get(one, caller)).kind == "compute#resourcePolicy"
    several = compute_v1.ListResourcePoliciesRequest(**place)
    assert (await policies.list(several, caller)).kind == "compute#resourcePolicyList"
    everywhere = compute_v1.AggregatedListResourcePoliciesRequest(project=PROJECT)
    found = await policies.aggregated_list(everywhere, caller)
    assert found.kind == "compute#resourcePolicyAggregatedList"
    assert [each.name for each in found.items[f"regions/{REGION}"].resource_policies] == ["nightly"]
