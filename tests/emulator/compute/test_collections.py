"""Kinds and lists of every Compute Engine collection, including two-word names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.support.discovery_documents import document
from tests.support.locations import PROJECT, REGION
from tpuctl.emulator.compute import service
from tpuctl.emulator.compute.api import COLLECTIONS
from tpuctl.emulator.compute.core.collection import Collection
from tpuctl.emulator.compute.core.supported_fields import (
    ATTACHED_DISK,
    DISK,
    INSTANCE,
    INSTANCE_TEMPLATE,
    Fields,
    check_supported,
)
from tpuctl.emulator.compute.groups.resource_policies import ResourcePolicies
from tpuctl.emulator.state.errors import ApiError
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


MESSAGES: Mapping[str, tuple[str, Fields]] = {
    "instance": ("Instance", INSTANCE),
    "disk": ("Disk", DISK),
    "template": ("InstanceTemplate", INSTANCE_TEMPLATE),
    "properties": ("InstanceProperties", INSTANCE_TEMPLATE["properties"]),
    "attached": ("AttachedDisk", ATTACHED_DISK),
    "new": ("AttachedDiskInitializeParams", ATTACHED_DISK["initializeParams"]),
    "interface": ("NetworkInterface", INSTANCE["networkInterfaces"]),
    "access": ("AccessConfig", INSTANCE["networkInterfaces"]["accessConfigs"]),
}


@pytest.mark.parametrize("place", MESSAGES)
def test_fields_are_honored_or_refused_by_name(place: str) -> None:
    """Only what Google itself ignores is ignored."""
    message, fields = MESSAGES[place]
    for name, field in document("compute.v1").schemas[message]["properties"].items():
        is_output = "[Output Only]" in field.get("description", "") or field.get("readOnly")
        if name in fields or is_output or name in ("fingerprint", "labelFingerprint"):
            continue
        if (place, name) == ("interface", "name"):
            continue  # its description says that the server generates it
        with pytest.raises(ApiError, match=rf"The field {place}\.{name} is not") as refused:
            check_supported({name: "x"}, fields, place)
        assert refused.value.http == 501


def with_interface(**fields: Any) -> dict[str, Any]:
    return {"network_interfaces": [{"network": "global/networks/default", **fields}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (with_interface(network_i_p="10.132.0.9"), "networkInterfaces[0].networkIP"),
        (
            with_interface(access_configs=[{"nat_i_p": "203.0.113.7"}]),
            "networkInterfaces[0].accessConfigs[0].natIP",
        ),
        (with_interface(stack_type="IPV4_IPV6"), "networkInterfaces[0].stackType"),
        ({"guest_accelerators": [{"accelerator_count": 1}]}, "guestAccelerators"),
        ({"params": {"resource_manager_tags": {"a": "b"}}}, "params.resourceManagerTags"),
    ],
)
def test_refused_field_is_named(engine: Any, body: dict[str, Any], field: str) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match=re.escape(field)):
        engine.insert(engine.controller(**body))
    template = {key: value for key, value in body.items() if key != "params"}
    if "stackType" not in field and template:
        with pytest.raises(exceptions.MethodNotImplemented, match=re.escape(field)):
            engine.create_template(**template)


@pytest.mark.parametrize("version", [{"name": "canary"}, {"target_size": {"fixed": 1}}])
def test_refused_field_of_group_version_is_named(engine: Any, version: dict[str, Any]) -> None:
    template = engine.create_template()
    field = {"target_size": "targetSize"}.get(*version, "name")
    with pytest.raises(exceptions.MethodNotImplemented, match=rf"versions\[0\]\.{field}"):
        engine.insert_group(versions=[{"instance_template": template, **version}])


def test_instance_keeps_requested_fields(engine: Any) -> None:
    fields = {
        "hostname": "head.lab.example",
        "key_revocation_action_type": "STOP",
        "advanced_machine_features": {"threads_per_core": 1},
        "display_device": {"enable_display": True},
        "network_performance_config": {"total_egress_bandwidth_tier": "TIER_1"},
        "min_cpu_platform": "Intel Haswell",
    }

    body = engine.controller(**fields, **with_interface(nic_type="GVNIC"))
    engine.wait_ok(engine.insert(body))
    instance = engine.get()
    for field, value in fields.items():
        actual = getattr(instance, field)
        assert actual == (type(actual)(value) if isinstance(value, dict) else value), field
    assert instance.network_interfaces[0].nic_type == "GVNIC"
    with pytest.raises(exceptions.BadRequest, match="hostname"):
        engine.insert(engine.controller("other", hostname="no domain"))


def test_template_without_network_has_the_default_one(engine: Any) -> None:
    """As the tests of Google's samples expect, which set the interface's name instead: that is the
    server's."""
    engine.create_template(network_interfaces=[{"name": "global/networks/default"}])
    which = {"project": PROJECT, "instance_template": "bert"}
    [interface] = engine.instance_templates.get(which).properties.network_interfaces
    assert interface.name == "nic0"
    assert interface.network == f"{engine.link}projects/{PROJECT}/global/networks/default"
