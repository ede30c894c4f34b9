"""The control API for faults, settings and calls, and their persistence."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PARENT, PROJECT, ZONE
from tpuctl.emulator.faults.fault import matches_method
from tpuctl.emulator.faults.google_messages import MESSAGES, fault_error
from tpuctl.errors import NotFound, Usage
from tpuctl.local_cloud import remote_control

NODE = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
TPU = "google.cloud.tpu.v2.Tpu"


def names(client: Any) -> list[str]:
    return [node.name for node in client.list_nodes(parent=PARENT, timeout=60)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "stokout"}, "Did you mean stockout?"),
        ({"kind": "stockout", "type": "v5e-7"}, "Did you mean v5litepod-8?"),
        ({"kind": "stockout", "type": "trilium-8"}, "Did you mean v6e-8?"),
        ({"kind": "unavailable", "tims": 2}, "Did you mean times?"),
        ({"kind": "unavailable", "seconds": 2}, "kind unavailable does not support 'seconds'"),
        ({"kind": "slow"}, "requires 'seconds'"),
        ({"kind": "slow", "seconds": -1}, "seconds must be a number of at least 0, not -1"),
        ({"kind": "slow", "seconds": True}, "not True"),
        ({"kind": "preempt"}, "requires 'node'"),
        ({"kind": "preempt", "node": "n", "times": 2}, "happens once"),
        ({"kind": "drop-response", "times": 0}, "times must be an integer from 1"),
        ({"kind": "drop-response", "times": 1.5}, "or unlimited, not 1.5"),
        ({"kind": "drop-response", "at": "2"}, "at must be an integer"),
        ({"kind": "drop-response", "method": ""}, "method must be a non-empty string"),
        (
            {"kind": "drop-response", "method": "CreateNodes"},
            "Unknown method 'CreateNodes'. Did you mean Create",
        ),
        ({"kind": "drop-response", "method": "createnode"}, "Did you mean CreateNode?"),
        ({"kind": "drop-response", "method": "GetNode, objects.gett"}, "Did you mean objects.get?"),
        (
            {"kind": "drop-response", "method": "storage.objcts.*"},
            "Unknown method 'storage.objcts.*'",
        ),
        (
            {"kind": "drop-response", "method": "Networks/AggregatedList"},
            "Unknown method 'Networks/Aggregated",
        ),
        ({"kind": "host-unreachable"}, "requires 'node'"),
        (
            {"kind": "host-unreachable", "node": "n", "worker": -1},
            "worker must be an integer from 0",
        ),
        ({"kind": "disk-full", "node": "n", "at": 2}, "happens once"),
        ({"kind": "truncate", "body": "both"}, "body must be request or response, not 'both'"),
        ({"kind": "truncate", "after_bytes": -1}, "after_bytes must be an integer from 0"),
        ({"kind": "hold", "hold_response": "yes"}, "hold_response must be true or false"),
        ({"kind": "error", "code": "UNAVAILABEL"}, "Did you mean UNAVAILABLE?"),
        ({"kind": "error", "google_error": "quota-zon"}, "Did you mean quota-zone?"),
        ({"kind": "error", "http": 200}, "http must be an integer from 400 to 599"),
        ({}, "Unknown fault kind ''"),
    ],
)
def test_invalid_fault_is_rejected(cloud: Any, fields: dict[str, Any], message: str) -> None:
    from tpuctl.local_cloud import server_process

    with pytest.raises(Usage) as caught:
        server_process.request(cloud.local_cloud, "POST", "/_local/faults", fields)
    assert message in caught.value.diagnostics[0].detail
    assert remote_control.faults(cloud.local_cloud) == []


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'"stockout"'])
def test_body_must_be_an_object(cloud: Any, body: bytes) -> None:
    for verb, path in (("POST", "faults"), ("PATCH", "settings")):
        answer = cloud.request(verb, f"/_local/{path}", data=body)
        assert answer.status_code == 400


def test_only_owner_is_allowed(cloud: Any) -> None:
    token = cloud.in_loop(
        cloud.server.registry.access.token_for, "machine@local-project.iam.gserviceaccount.com"
    )
    for verb, path in (
        ("GET", "faults"),
        ("POST", "faults"),
        ("GET", "calls"),
        ("GET", "settings"),
    ):
        answer = cloud.request(verb, f"/_local/{path}", token=token, json={"kind": "drop-response"})
        assert answer.status_code == 403
    assert remote_control.faults(cloud.local_cloud) == []


async def test_restart_keeps_faults_and_settings(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    handle = cloud.local_cloud
    await asyncio.to_thread(
        remote_control.add_fault, handle, "unavailable", method="ListNodes", times=2
    )
    await asyncio.to_thread(
        remote_control.add_fault, handle, "deny", method="GetNode", text="no, no"
    )
    await asyncio.to_thread(
        remote_control.change_settings,
        handle,
        nodes="denied",
        quota={"TPUV3": {ZONE: 8}},
        pace="real",
    )
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.to_thread(names, cloud.tpu())
    before = await asyncio.to_thread(remote_control.faults, handle)
    await cloud.server.close()
    again = await make_cloud()
    assert await asyncio.to_thread(remote_control.faults, again.local_cloud) == before
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.to_thread(names, again.tpu())
    assert await asyncio.to_thread(names, again.tpu()) == []
    with pytest.raises(exceptions.PermissionDenied, match="no, no"):
        await asyncio.to_thread(again.tpu().get_node, name=f"{PARENT}/nodes/x", timeout=60)
    assert [
        fault["applied"]
        for fault in await asyncio.to_thread(remote_control.faults, again.local_cloud)
    ] == [
        2,
        1,
    ]
    settings = await asyncio.to_thread(remote_control.settings, again.local_cloud)
    assert (settings["nodes"], settings["quota"]) == ("denied", {"TPUV3": {ZONE: 8}})
    added = await asyncio.to_thread(remote_control.add_fault, again.local_cloud, "drop-response")
    assert added["id"] not in [fault["id"] for fault in before]


async def test_take_returns_matching_stockout(cloud: Any) -> None:
    """Services call `take` with their attributes."""
    faults = cloud.server.registry.faults
    handle = cloud.local_cloud
    await asyncio.to_thread(
        remote_control.add_fault, handle, "stockout", zone=ZONE, type="v3-*", times=2
    )
    assert faults.take("stockout", zone="us-central1-b", type="v3-8") is None
    assert faults.take("stockout", zone=ZONE, type="v2-8") is None
    assert faults.take("queue-failure", zone=ZONE, type="v3-8") is None
    for _ in range(2):
        used_fault = faults.take("stockout", zone=ZONE, type="v3-8")
        assert used_fault["kind"] == "stockout"
    assert faults.take("stockout", zone=ZONE, type="v3-8") is None
    (listed,) = await asyncio.to_thread(remote_control.faults, handle)
    assert (listed["applied"], listed["matched"], listed["exhausted"]) == (2, 2, True)


@pytest.mark.parametrize(
    ("name", "type_name", "other"),
    [("V5E-8", "v5litepod-8", "v5litepod-4"), ("trillium", "v6e-4", "v5litepod-4")],
)
async def test_fault_is_limited_by_usual_name_of_type(
    cloud: Any, name: str, type_name: str, other: str
) -> None:
    faults = cloud.server.registry.faults
    await asyncio.to_thread(remote_control.add_fault, cloud.local_cloud, "stockout", type=name)
    assert faults.take("stockout", zone=ZONE, type=other) is None
    assert faults.take("stockout", zone=ZONE, type=type_name) is not None


def test_journal_lists_every_call(cloud: Any) -> None:
    client, storage, handle = cloud.tpu("rest"), cloud.storage(), cloud.local_cloud

    storage.create_bucket("a-bucket", timeout=60)
    bucket = storage.bucket("a-bucket")
    bucket.blob("x").upload_from_string("content", timeout=60)
    with pytest.raises(exceptions.NotFound):
        bucket.get_blob("y", timeout=60) or bucket.blob("y").reload(timeout=60)
    client.create_node(parent=PARENT, node_id="one", node=NODE, timeout=60)
    cloud.tpu().get_node(name=f"{PARENT}/nodes/one", timeout=60)
    cloud.request("GET", f"/compute/v1/projects/{PROJECT}/global/networks")
    calls = remote_control.calls(handle)
    summary = [(call["method"], call["status"], call["mutating"]) for call in calls]
    assert summary == [
        ("storage.buckets.insert", "OK", True),
        ("storage.objects.insert", "OK", True),
        ("storage.objects.get", "NOT_FOUND", False),
        ("storage.objects.get", "NOT_FOUND", False),
        (f"{TPU}/CreateNode", "OK", True),
        (f"{TPU}/GetNode", "OK", False),
        ("google.cloud.compute.v1.Networks/List", "OK", False),
    ]
    assert [call["number"] for call in calls] == [1, 2, 3, 4, 5, 6, 7]
    assert {call["project"] for call in calls[1:]} == {PROJECT}
    assert {call["caller"] for call in calls} == {"owner@local-cloud.invalid"}
    later = remote_control.calls(handle, 5)
    assert [call["number"] for call in later] == [6, 7]
    assert remote_control.calls(handle, 7) == []
    assert remote_control.calls(handle, 700) == []


def test_journal_lists_faults_of_calls(cloud: Any) -> None:
    handle = cloud.local_cloud
    fault = remote_control.add_fault(handle, "drop-request", method="ListNodes")
    with pytest.raises(exceptions.ServiceUnavailable):
        names(cloud.tpu())
    (call,) = remote_control.calls(handle)
    assert (call["status"], call["faults"]) == ("DISCONNECTED", [fault["id"]])


async def test_journal_drops_oldest_calls(cloud: Any) -> None:
    def list_calls() -> dict[str, Any]:
        answer: dict[str, Any] = cloud.request("GET", "/_local/calls?since=0").json()
        return answer

    traffic = cloud.server.registry.traffic
    from tpuctl.emulator.faults.traffic import Caller

    for number in range(10_050):
        async with traffic.track(f"a.Service/Get{number}", Caller("ann@example.com")):
            pass
    journal = await asyncio.to_thread(list_calls)
    assert journal["last"] == 10_050
    assert len(journal["calls"]) == 10_000
    assert journal["calls"][0]["method"] == "a.Service/Get50"
    assert [call["number"] for call in traffic.calls(10_049)["calls"]] == [10_050]


def test_settings_are_patched(cloud: Any) -> None:
    handle = cloud.local_cloud

    def change(**changes: Any) -> dict[str, Any]:
        return remote_control.change_settings(handle, **changes)

    fresh = remote_control.settings(handle)
    assert fresh == {
        "pace": "instant",
        "nodes": "allowed",
        "quota": {},
        "policies": [],
        "denied_permissions": [],
        "propagation": 0,
        "address": "127.0.0.1",
        "reservations": [],
        "devices": 0,
        "zones": [],
    }
    change(quota={"A": {ZONE: 4, "us-central1": 0}, "B": {ZONE: 1}})
    change(policies=["constraints/compute.vmExternalIpAccess"])
    change(policies={"iam.allowedPolicyMemberDomains": True})
    change(denied_permissions={"tpu.nodes.create": True})
    change(reservations={f"{PARENT}/reservations/r": True})
    change(quota={"A": {ZONE: None}, "B": None})
    settings = change(policies={"compute.vmExternalIpAccess": False})
    assert settings["quota"] == {"A": {"us-central1": 0}}
    assert settings["policies"] == ["iam.allowedPolicyMemberDomains"]
    assert settings["denied_permissions"] == ["tpu.nodes.create"]
    assert settings["reservations"] == [f"{PARENT}/reservations/r"]
    stored = cloud.in_loop(cloud.server.registry.settings.get, "policies")
    assert stored == settings["policies"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node": "denied"}, "Did you mean nodes?"),
        ({"nodes": "closed"}, "nodes must be allowed or denied"),
        ({"pace": "warp"}, "instant, quick, real"),
        ({"quota": {"A": {"us-east5-aa": 4}}}, "Did you mean us-east5-a?"),
        ({"quota": {"A": {ZONE: -1}}}, "not -1"),
        ({"quota": {"A": {ZONE: True}}}, "not True"),
        ({"devices": -1}, "not -1"),
        ({"devices": True}, "not True"),
        ({"quota": {"": {ZONE: 1}}}, "Invalid quota limit ID"),
        ({"quota": {"A": 3}}, "zones or regions"),
        ({"policies": {"vmExternalIpAccess": True}}, "not a valid constraint"),
        ({"policies": {"compute.vmExternalIpAccess": 1}}, "true or false"),
        ({"denied_permissions": ["tpu"]}, "not a valid permission"),
        ({"reservations": ["mine"]}, "not a valid reservation"),
    ],
)
def test_invalid_setting_changes_nothing(cloud: Any, changes: dict[str, Any], message: str) -> None:
    handle = cloud.local_cloud
    before = remote_control.settings(handle)
    with pytest.raises(Usage) as caught:
        remote_control.change_settings(handle, **({"nodes": "denied"} | changes))
    assert message in caught.value.diagnostics[0].detail
    assert remote_control.settings(handle) == before


def test_pace_changes_without_restart(cloud: Any) -> None:
    client = cloud.tpu()

    def create(node_id: str) -> Any:
        return client.create_node(parent=PARENT, node_id=node_id, node=NODE, timeout=60)

    remote_control.change_settings(cloud.local_cloud, pace="real")
    node = create("slow")
    record = cloud.in_loop(cloud.server.registry.operations.get, node.operation.name)
    assert record.due - record.started > 60
    report = cloud.request("GET", "/_local/status").json()
    assert report["pace"] == "real"
    remote_control.change_settings(cloud.local_cloud, pace="instant")
    node = create("quick")
    record = cloud.in_loop(cloud.server.registry.operations.get, node.operation.name)
    assert record.due == record.started


def test_unknown_ids_are_not_found(cloud: Any) -> None:
    handle = cloud.local_cloud
    remote_control.add_fault(handle, "drop-response", name="x")
    for call in (remote_control.fault, remote_control.remove_fault, remote_control.release):
        with pytest.raises(NotFound, match="drop-response-7"):
            call(handle, "drop-response-7")
        with pytest.raises(NotFound):
            call(handle, "a/b c?d")
    answer = cloud.request("PUT", "/_local/faults")
    assert answer.status_code == 404
    answer = cloud.request("GET", "/_local/calls?since=x")
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("method", "is_so"),
    [
        (f"{TPU}/CreateNode", True),
        (f"{TPU}/GenerateServiceIdentity", True),
        (f"{TPU}/SimulateMaintenanceEvent", True),
        ("google.cloud.resourcemanager.v3.Projects/SetIamPolicy", True),
        ("google.cloud.compute.v1.Instances/SetMetadata", True),
        ("google.api.serviceusage.v1.ServiceUsage/BatchEnableServices", True),
        ("storage.objects.rewrite", True),
        ("storage.objects.insert", True),
        (f"{TPU}/GetNode", False),
        (f"{TPU}/ListNodes", False),
        ("google.cloud.resourcemanager.v3.Projects/TestIamPermissions", False),
        ("google.cloud.compute.v1.Instances/AggregatedList", False),
        ("google.cloud.compute.v1.ZoneOperations/Wait", False),
        ("google.api.serviceusage.v1.ServiceUsage/BatchGetServices", False),
        ("google.iam.admin.v1.IAM/QueryTestablePermissions", False),
        ("storage.buckets.getIamPolicy", False),
        ("storage.buckets.testIamPermissions", False),
        ("storage.projects.serviceAccount.get", False),
    ],
)
def test_mutating_methods(method: str, is_so: bool) -> None:
    assert matches_method("mutating", method) == is_so


@pytest.mark.parametrize(
    ("pattern", "method", "is_so"),
    [
        ("*", "storage.buckets.get", True),
        (f"{TPU}/CreateNode", f"{TPU}/CreateNode", True),
        ("CreateNode", f"{TPU}/CreateNode", True),
        ("Tpu/CreateNode", f"{TPU}/CreateNode", True),
        ("v2.Tpu/*", f"{TPU}/GetNode", True),
        ("google.cloud.tpu.*/CreateNode", "google.cloud.tpu.v1.Tpu/CreateNode", True),
        ("GetNode, CreateNode", f"{TPU}/CreateNode", True),
        ("storage.*", "storage.objects.get", True),
        ("objects.get", "storage.objects.get", True),
        ("Node", f"{TPU}/CreateNode", False),
        ("createnode", f"{TPU}/CreateNode", False),
        ("v2alpha1.Tpu/*", f"{TPU}/GetNode", False),
        ("buckets.get", "storage.buckets.getIamPolicy", False),
    ],
)
def test_method_patterns(pattern: str, method: str, is_so: bool) -> None:
    assert matches_method(pattern, method) == is_so


@pytest.mark.parametrize("google_error", list(MESSAGES))
def test_every_message_can_be_used(google_error: str) -> None:
    facts: dict[str, Any] = {"zone": ZONE, "region": "europe-west4", "type": "v3-8"}
    facts["project"] = PROJECT
    facts |= {"project_number": 7, "caller": "ann@example.com", "service": "tpu.googleapis.com"}
    error = fault_error({"kind": "error", "google_error": google_error}, facts)
    whole = error.as_json("platform").decode() + error.as_json("legacy").decode()
    assert not re.search(r"\{\w+\}", whole)
    assert "unknown" not in whole
    status = error.as_status()
    assert (status.code, status.message) == (error.number, error.message)
    assert len(status.details) == len(MESSAGES[google_error].details)
