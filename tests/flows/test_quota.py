"""Quota usage and limits are read next to the plan; one that is known to be too small stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.locations import REGION, ZONE
from tests.support.projects import Bench, Project
from tests.support.tpu_instances import V6E_IMAGE
from tpuctl.catalog import accelerator_type
from tpuctl.catalog.quota import quota_limit
from tpuctl.errors import QuotaExceeded
from tpuctl.flows.stack.plan import Prepared
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.capacity.quota import QuotaLine, QuotaReport
from tpuctl.model.events import WarningIssued

IN_ZONE = "TPUV3sPerProjectPerZoneForTPUAPI"
IN_REGION = "TPUV3sPerProjectPerRegionForTPUAPI"
LIMIT = 40

SetQuota = Callable[[dict[str, dict[str, int]]], None]


@pytest.fixture
def set_quota(cloud: LocalCloud) -> Iterator[SetQuota]:
    """Changes every project's quota until the test ends."""
    yield lambda limits: remote_control.change_settings(cloud, quota=limits) and None
    left = dict.fromkeys(remote_control.settings(cloud)["quota"])
    remote_control.change_settings(cloud, quota=left)


def by_limit(prepared: Prepared) -> dict[str, QuotaLine]:
    return {line.limit: line for line in prepared.quota.lines}


def warnings(bench: Bench) -> list[str]:
    return [event.diagnostic.detail for event in bench.events if isinstance(event, WarningIssued)]


async def test_quota_usage_and_remaining(project: Project, set_quota: SetQuota) -> None:
    set_quota({IN_ZONE: {ZONE: LIMIT}})
    bench = project.stack(extra="controller: {}")
    await bench.provision()
    other = project.stack("data_disks: [{size_gb: 30, type: pd-standard}]", "controller: {}")
    lines = by_limit(await other.stack.plan())
    zone = lines[IN_ZONE]
    assert (zone.place, zone.used, zone.added, zone.left) == (ZONE, 8, 8, LIMIT - 16)
    assert IN_REGION not in lines, "no separate limit for the region"
    cpus = lines["CPUS"]
    assert (cpus.place, cpus.used, cpus.added) == (REGION, 1, 1)
    assert lines["DISKS_TOTAL_GB"].used == 50
    assert lines["DISKS_TOTAL_GB"].added == 50 + 30
    assert lines["IN_USE_ADDRESSES"].added == 2
    assert warnings(other) == []


async def test_preempted_node_is_not_counted_twice(
    project: Project, cloud: LocalCloud, set_quota: SetQuota
) -> None:
    """`up` replaces the node."""
    limit = "TPUV3sPreemptiblePerProjectPerZoneForTPUAPI"
    set_quota({limit: {ZONE: LIMIT}})
    bench = project.stack("capacity: spot")
    await bench.provision()
    await bench.preempt(cloud)
    line = by_limit(await bench.reopen().plan())[limit]
    assert (line.used, line.added) == (0, 8)


async def test_foreign_nodes_count_toward_quota(project: Project, set_quota: SetQuota) -> None:
    set_quota({IN_ZONE: {ZONE: LIMIT}})
    bench = project.stack()
    await bench.provision()
    parent = f"projects/{project.id}/locations/{ZONE}"
    body = {"accelerator_type": "v3-8", "runtime_version": "tpu-ubuntu2204-base"}
    await bench.call("tpu", "create_node", {"parent": parent, "node_id": "mine", "node": body})
    line = by_limit(await project.stack().stack.plan())[IN_ZONE]
    assert (line.used, line.added) == (16, 8)
    prepared = await bench.reopen().plan()
    assert prepared.plan.is_empty, "foreign nodes are not changed"


async def test_insufficient_quota_stops_plan_doctor_and_up(
    project: Project, cloud: LocalCloud, set_quota: SetQuota
) -> None:
    first = project.stack()
    await first.provision()  # creates the project and enables its APIs
    await first.stack.down(delete_bucket=True)
    set_quota({IN_ZONE: {ZONE: 4}, "IN_USE_ADDRESSES": {REGION: 0}})
    bench = project.stack()
    with pytest.raises(QuotaExceeded):
        await bench.provision()
    too_small = f"{IN_ZONE} in {ZONE} allows 4 cores: 0 used, 8 more are needed"
    request = f"    tpuctl local set quota {IN_ZONE} {ZONE} 8"
    for command in (("plan",), ("up", "--yes"), ("doctor",)):
        since = remote_control.calls(cloud)[-1]["number"]
        code, out, stderr = bench.type(*command)
        assert code == 76, (command, out, stderr)
        output = " ".join((out + stderr).split())
        assert too_small in output
        assert request.strip() in output
        assert not [call for call in remote_control.calls(cloud, since) if call["mutating"]]

    code, out, stderr = bench.type("plan")
    assert "up" not in out.partition("Next:")[2], "it would be refused"
    (row,) = [line.split() for line in out.splitlines() if line.startswith("TPUV3s")]
    assert row == ["TPUV3s,", "cores", ZONE, "0", "8", "-4", "4"]
    answer = bench.answer("plan")
    assert answer["diagnostics"][0]["summary"] == "Not enough quota"
    data = answer["data"]["quota"]
    assert {
        "quota": IN_ZONE,
        "location": ZONE,
        "unit": "cores",
        "limit": 4,
        "usage": 0,
        "requested": 8,
        "remaining": -4,
    } in data["limits"]
    assert data["unavailable"] == []


async def test_one_zone_with_quota_is_enough(project: Project, set_quota: SetQuota) -> None:
    await project.stack().provision()
    bench = project.stack(zones=f"{ZONE}, us-central1-a", extra="bucket: {allow_egress: true}")
    set_quota({IN_ZONE: {ZONE: 4, "us-central1-a": 8}})
    code, _, stderr = bench.type("plan")
    assert code == 0, stderr
    set_quota({IN_ZONE: {"us-central1-a": 4}})
    code, _, stderr = bench.type("plan")
    assert code == 76
    for zone in (ZONE, "us-central1-a"):
        assert f"{IN_ZONE} in {zone} allows 4 cores" in stderr


async def test_second_up_needs_no_more_quota(project: Project, set_quota: SetQuota) -> None:
    bench = project.stack()
    await bench.provision()
    set_quota({IN_ZONE: {ZONE: 8}})
    prepared = await bench.reopen().plan()
    assert prepared.quota.blocking == ()
    other = await project.stack().stack.plan()
    assert [line.limit for line in other.quota.blocking] == [IN_ZONE], "the first stack's counts"


async def test_spot_has_quota_of_its_own(project: Project, set_quota: SetQuota) -> None:
    await project.stack().provision()
    set_quota({IN_ZONE: {ZONE: 0}})
    spot = await project.stack("capacity: spot").stack.plan()
    queued = await project.stack("queue: true").stack.plan()
    assert spot.quota.blocking == ()
    assert [line.limit for line in queued.quota.blocking] == [IN_ZONE]


def test_request_for_more_quota_on_google() -> None:
    """As documented: gcloud quotas preferences create, with the limit's id and dimensions."""
    accelerator = accelerator_type("v3-8")
    assert accelerator is not None
    limit = quota_limit(accelerator, spot=False)
    line = QuotaLine(limit.id, ZONE, "cores", 4, 0, 8, quota=limit)
    error = QuotaReport((line,), blocking=(line,)).error("my-project", is_local=False)
    assert error is not None
    assert error.exit_code == 76
    hint = error.diagnostics[0].hint
    assert (
        "    gcloud quotas preferences create --project=my-project --service=tpu.googleapis.com "
        f"--quota-id={IN_ZONE} --dimensions=zone={ZONE} --preferred-value=8\n" in hint
    )
    assert "iam-admin/quotas?service=tpu.googleapis.com&project=my-project" in hint


async def test_addresses_alone_only_warn(project: Project, set_quota: SetQuota) -> None:
    """Whether external addresses of TPU VMs count against Compute Engine's quota is not known."""
    await project.stack().provision()
    set_quota({"IN_USE_ADDRESSES": {REGION: 0}})
    bench = project.stack()
    assert (await bench.stack.plan()).quota.blocking == ()
    (addresses,) = warnings(bench)
    assert f"IN_USE_ADDRESSES in {REGION} allows 0" in addresses


async def test_regional_quota_limit(project: Project, set_quota: SetQuota) -> None:
    bench = project.stack()
    await bench.provision()
    set_quota({IN_REGION: {REGION: 8}})
    other = project.stack()
    line = by_limit(await other.stack.plan())[IN_REGION]
    assert (line.place, line.used, line.left) == (REGION, 8, -8)


@pytest.mark.parametrize(
    ("method", "service"),
    [("ConsumerQuotaMetrics", "Cloud TPU"), ("Regions/Get", "Compute Engine")],
)
async def test_unreadable_quota_is_not_an_error(
    project: Project, cloud: LocalCloud, method: str, service: str
) -> None:
    bench = project.stack()
    await bench.provision()
    fault = remote_control.add_fault(cloud, "deny", method=f"*{method}*", times="unlimited")
    prepared = await project.stack().stack.plan()
    assert remote_control.fault(cloud, fault["id"])["applied"] == 1
    (unread,) = prepared.quota.unread
    assert f"quota of {service} could not be read: permission denied" in unread
    code, out, stderr = bench.type("plan")
    assert code == 0
    assert f"The quota of {service} could not be read: permission denied." in out
    assert stderr == "", "no warning"


async def test_quota_is_unknown_before_apis_are_enabled(project: Project) -> None:
    bench = project.stack()
    prepared = await bench.stack.plan()
    assert [line.added for line in prepared.quota.lines] == [8]
    assert all(line.allowed is None for line in prepared.quota.lines)
    assert len(prepared.quota.unread) == 2
    assert warnings(bench) == []


async def test_quota_needs_two_more_requests(project: Project, cloud: LocalCloud) -> None:
    bench = project.stack()
    await bench.provision()
    last = max(call["number"] for call in remote_control.calls(cloud))
    await bench.reopen().plan()
    methods = [call["method"] for call in remote_control.calls(cloud, last)]
    calls_by_topic: dict[str, Any] = {}
    for word in ("Quota", "Regions", "ListNodes", "ListQueuedResources"):
        calls_by_topic[word] = sum(1 for method in methods if word in method)
    assert calls_by_topic == {"Quota": 1, "Regions": 1, "ListNodes": 2, "ListQueuedResources": 1}


FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region"
IN_TPU_API = "TPUV6EPerProjectPerZoneForTPUAPI"
OTHER_ZONE, OTHER_REGION = "us-east5-a", "us-east5"


def at_compute(project: Project, tpu: str = "api: compute") -> Bench:
    return project.stack(tpu, type_name="v6e-4", zones=OTHER_ZONE)


async def test_instances_count_in_pool_of_compute_engine(
    project: Project, set_quota: SetQuota
) -> None:
    bench = at_compute(project)
    await bench.provision()
    link = f"projects/{project.id}/zones/{OTHER_ZONE}"
    await bench.call(
        "instances",
        "insert_unary",
        {
            "project": project.id,
            "zone": OTHER_ZONE,
            "instance_resource": {
                "name": "not-of-a-stack",
                "machine_type": f"{link}/machineTypes/ct6e-standard-8t",
                "disks": [{"boot": True, "initialize_params": {"source_image": V6E_IMAGE}}],
                "network_interfaces": [{"network": "global/networks/default"}],
                "scheduling": {"on_host_maintenance": "TERMINATE"},
            },
        },
    )
    set_quota({FAMILY: {OTHER_REGION: 14}, IN_TPU_API: {OTHER_ZONE: 0}})
    other = at_compute(project)
    prepared = await other.stack.plan()
    line = by_limit(prepared)[FAMILY]
    assert (line.place, line.used, line.added, line.left) == (OTHER_REGION, 4 + 8, 4, -2)
    assert prepared.quota.blocking == (line,)
    assert (await bench.reopen().plan()).quota.blocking == (), "its own are not counted again"
    code, out, _ = other.type("plan")
    assert code == 76
    (row,) = [line.split() for line in out.splitlines() if line.startswith("TPUS-PER")]
    assert row == ["TPUS-PER-TPU-FAMILY,", "chips", OTHER_REGION, "12", "4", "-2", "14"]


async def test_quota_of_other_api_is_no_use(project: Project, set_quota: SetQuota) -> None:
    await project.stack().provision()
    set_quota({FAMILY: {OTHER_REGION: 0}, IN_TPU_API: {OTHER_ZONE: 512}})
    bench = at_compute(project)
    code, _, stderr = bench.type("plan")
    assert code == 76
    assert f"{FAMILY} in {OTHER_REGION} allows 0 chips" in stderr
    assert "tpu: {api: tpu}" in stderr
    set_quota({FAMILY: {OTHER_REGION: 32}, IN_TPU_API: {OTHER_ZONE: 0}})
    bench = at_compute(project, "api: auto")
    await bench.stack.plan()
    (warning,) = [event for event in bench.events if isinstance(event, WarningIssued)]
    assert warning.diagnostic.summary == "Quota of the wrong pool"
    assert "then repeated at that API" in warning.diagnostic.hint
