"""`--live` queries the APIs over the wire and reports differences from the catalog."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gcloud import make_project
from tests.support.locations import ZONE
from tests.support.projects import Bench, Project
from tpuctl import catalog
from tpuctl.catalog import tpu as table
from tpuctl.cli.main import run
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

ZONES = {*catalog.zones()}
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def bench(project: Project, cloud: LocalCloud) -> Bench:
    """A stack that is up: its project has the APIs, and a v3-8 in use."""
    stack = project.stack()
    asyncio.run(stack.provision())
    return stack


@pytest.fixture
def change_catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Edit], None]]:
    """Changes the catalog of this process, not of the cloud."""

    def forget() -> None:
        for cached in (table.accelerator_types, table.zones, table.runtimes, table.node_versions):
            cached.cache_clear()

    def change(edit: Edit) -> None:
        data = copy.deepcopy(table.data())
        edit(data)
        for module in ("tpu", "prices"):
            monkeypatch.setattr(f"tpuctl.catalog.{module}.data", lambda: data)
        forget()

    yield change
    monkeypatch.undo()
    forget()


def data_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The data of a command's JSON answer, or its diagnostics."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    return answer["diagnostics"] if code else answer["data"]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run([*arguments]) == 0
    return capsys.readouterr().out


def test_live_lists_match_catalog(
    bench: Bench, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("types", "zones", "runtimes"):
        data = data_of(capsys, command, "--live", "--project", project.id)
        live = data["live"]
        assert (live["new"], live["removed"], live["unavailable"]) == ([], [], {}), command
        assert (live["project"], {*live["zones"]}) == (project.id, ZONES)
        here = {row["live"] for row in data[command]}
        assert here == ({"same", "-"} if command == "types" else {"same"})
        if command == "runtimes":
            continue
        machines = live["compute"]
        assert (machines["new"], machines["removed"], machines["unavailable"]) == ([], [], None)
        at_compute = {row["live_compute"] for row in data[command]}
        assert at_compute == ({"same", "-"} if command == "types" else {"same"})
    nodes = data_of(capsys, "runtimes", "--nodes", "--project", project.id, "--zone", ZONE)
    assert (nodes["live"]["zones"], nodes["live"]["new"], nodes["live"]["removed"]) == (
        [ZONE],
        [],
        [],
    )
    assert "No differences from the catalog." in output_of(
        capsys, "types", "--project", project.id, "--type", "v2", "--zone", ZONE
    )


def test_new_and_removed_types_are_reported(
    bench: Bench,
    project: Project,
    change_catalog: Callable[[Edit], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def edit(data: dict[str, Any]) -> None:
        del data["prices"]["v3-8"]["us-central1-a"]
        data["prices"]["v3-8"]["us-west4-b"] = [2.0, 0.5]
        data["types"]["v3"] = [row for row in data["types"]["v3"] if row[0] != "v3-2048"]
        data["types"]["v3"].append(["v3-16", 8, 16, 2, "2x4", "v3-pod"])
        del data["prices"]["v4"]["us-central2-b"], data["prices"]["v6e"]["us-central2-b"]

    change_catalog(edit)
    options = ("--live", "--project", project.id)
    data = data_of(capsys, "types", "--type", "v3", *options)
    rows = {row["type"]: row for row in data["types"]}
    assert rows["v3-8"]["live"] == "+1 -1"
    assert "us-central1-a" in rows["v3-8"]["zones"]
    assert (rows["v3-2048"]["live"], rows["v3-2048"]["chips"]) == ("new", None)
    assert (rows["v3-16"]["live"], rows["v3-16"]["zones"]) == ("removed", [])
    assert {row["live"] for row in rows.values()} == {"same", "new", "removed", "+1 -1"}
    pods = ("europe-west4-a", "us-east1-d")
    new = {(entry["name"], entry["zone"]) for entry in data["live"]["new"]}
    assert new == {("v3-8", "us-central1-a"), *(("v3-2048", zone) for zone in pods)}
    removed = {(entry["name"], entry["zone"]) for entry in data["live"]["removed"]}
    assert removed == {("v3-8", "us-west4-b"), *(("v3-16", zone) for zone in pods)}

    text = output_of(capsys, "types", "--type", "v3", *options)
    assert "New: v3-2048 in europe-west4-a, us-east1-d" in text
    assert "Removed: v3-8 in us-west4-b" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []

    zones = data_of(capsys, "zones", *options)["zones"]
    fresh = {row["zone"]: row["live"] for row in zones if row["live"] != "same"}
    assert fresh["us-central2-b"] == "new", "zones missing in the catalog are queried too"
    assert fresh["us-central1-a"] == "+1"
    (only,) = data_of(capsys, "types", "--type", "v4-8", "--zone", "us-central2-b", *options)[
        "types"
    ]
    assert only["live"] == "new", "such a zone can be selected"


def test_machine_types_of_compute_engine_are_compared(
    bench: Bench,
    project: Project,
    cloud: LocalCloud,
    change_catalog: Callable[[Edit], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without the history of other tests' requests, which is a column of its own.
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))

    def edit(data: dict[str, Any]) -> None:
        del data["prices"]["v6e"]["us-east5-a"]
        data["prices"]["v6e"]["us-west4-b"] = [2.7, 0.5]

    change_catalog(edit)
    options = ("--live", "--project", project.id)
    data = data_of(capsys, "types", "v6e-8", *options)
    (row,) = data["types"]
    assert (row["live"], row["live_compute"]) == ("+1 -1", "+1 -1")
    machines = data["live"]["compute"]
    assert machines["new"] == [{"name": "ct6e-standard-8t", "zone": "us-east5-a"}]
    assert machines["removed"] == [{"name": "ct6e-standard-8t", "zone": "us-west4-b"}]
    text = output_of(capsys, "zones", "v6e-8", *options)
    assert "New at Compute Engine: ct6e-standard-8t in us-east5-a" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []

    remote_control.add_fault(cloud, "deny", method="*MachineTypes*", times="unlimited")
    data = data_of(capsys, "types", "v6e-8", *options)
    assert data["types"][0]["live"] == "+1 -1", "the other API answers"
    assert data["live"]["compute"]["unavailable"] == "permission denied"
    text = output_of(capsys, "types", "v6e-8", *options)
    assert "No answer from Compute Engine: permission denied." in text


def test_reservations_are_listed_with_their_names(
    bench: Bench, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    def insert(collection: str, body: dict[str, Any]) -> None:
        path = f"/compute/v1/projects/{project.id}/zones/us-east5-a/{collection}"
        rest = bench.stack.cloud.client("rest")
        asyncio.run(bench.stack.cloud.call("x", rest.call, "POST", "compute", path, body=body))

    properties = {"machineType": "ct6e-standard-4t"}
    insert(
        "reservations",
        {
            "name": "october",
            "specificReservationRequired": True,
            "specificReservation": {"count": "4", "instanceProperties": properties},
        },
    )
    insert(
        "futureReservations",
        {
            "name": "december",
            "reservationName": "december-week",
            "reservationMode": "CALENDAR",
            "timeWindow": {"startTime": "2099-12-01T00:00:00Z", "endTime": "2099-12-08T00:00:00Z"},
            "aggregateReservation": {
                "vmFamily": "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E",
                "workloadType": "BATCH",
                "reservedResources": [{"accelerator": {"acceleratorCount": 16}}],
            },
        },
    )
    options = ("--live", "--project", project.id)
    listed = data_of(capsys, "zones", "v6e-16", *options)["live"]["compute"]["reservations"]
    assert [(row["name"], row["count"], row["is_future"]) for row in listed] == [
        ("october", 4, False),
        ("december", 16, True),
    ]
    text = " ".join(output_of(capsys, "zones", "v6e-16", *options).split())
    assert "Reservation october in us-east5-a: 4 ct6e-standard-4t, 0 in use, READY." in text
    assert "tpu: {capacity: reserved, reservation: october}" in text
    assert "Future reservation december in us-east5-a: 16 v6e chips" in text
    others = data_of(capsys, "zones", "v5p-8", *options)["live"]["compute"]["reservations"]
    assert others == []


def test_new_and_removed_versions_are_reported(
    bench: Bench,
    project: Project,
    change_catalog: Callable[[Edit], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def edit(data: dict[str, Any]) -> None:
        first = data["runtimes"].pop(0)
        data["runtimes"].insert(0, {**first, "version": "tpu-vm-tf-9.9.9-pjrt"})

    version = table.data()["runtimes"][0]["version"]
    change_catalog(edit)
    data = data_of(capsys, "runtimes", "--live", "--project", project.id, "--zone", f"{ZONE},us-*")
    rows = {row["runtime"]: row["live"] for row in data["runtimes"]}
    assert (rows[version], rows["tpu-vm-tf-9.9.9-pjrt"]) == ("new", "removed")


def test_unavailable_zones_are_reported(
    bench: Bench, project: Project, cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("types", "--type", "v3-8", "--project", project.id)
    fault = remote_control.add_fault(
        cloud, "deny", method="*ListAcceleratorTypes", zone=ZONE, times="unlimited"
    )
    data = data_of(capsys, *options)
    assert data["live"]["unavailable"] == {ZONE: "permission denied"}
    assert data["live"]["removed"] == [], "unknown"
    assert f"No answer from {ZONE}: permission denied." in output_of(capsys, *options)
    assert remote_control.fault(cloud, fault["id"])["applied"] == 2
    zones = data_of(capsys, "zones", *options[1:])["zones"]
    assert {row["zone"]: row["live"] for row in zones}[ZONE] == "?"
    (denied,) = data_of(capsys, *options, "--zone", ZONE, code=77)
    assert denied["summary"] == "Permission denied"


def test_live_errors_keep_their_exit_codes(
    project: Project, cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    (absent,) = data_of(capsys, "types", "--live", "--project", "nobodys-project", code=77)
    assert "nobodys-project" in absent["detail"]
    without_apis = make_project(cloud)
    for command in (["zones"], ["runtimes"], ["quota", "v3-8"]):
        (diagnostic,) = data_of(capsys, *command, "--live", "--project", without_apis, code=77)
        assert diagnostic["summary"] == "API not enabled"
        assert "gcloud services enable" in diagnostic["hint"] or "up" in diagnostic["hint"]
    remote_control.add_fault(cloud, "unavailable", method="*ListSkus", times="unlimited")
    (away,) = data_of(capsys, "prices", "v3-8", "--live", code=69)
    assert "the price list" in away["detail"]


def test_catalog_prices_match_price_list(
    cloud: LocalCloud, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Needs no project: the list is public. A region's SKU applies to its zones."""
    data = data_of(capsys, "prices", "--live")
    zones = {
        entry["zone"] for entry in data["live"]["differences"] if entry["capacity"] != "flex-start"
    }
    unpriced = {zone for zone, prices in table.data()["prices"]["v6e"].items() if not any(prices)}
    in_the_region = {"us-south1-ai1b"}  # us-south1-a has a price
    assert zones == in_the_region < unpriced
    offers = data_of(capsys, "prices")["offers"]
    assert [(row["type"], row["capacity"]) for row in data["offers"]] == [
        (row["type"], row["capacity"]) for row in offers
    ]
    for row, offer in zip(data["offers"], offers, strict=True):
        assert row["per_hour"] == pytest.approx(offer["per_hour"], rel=1e-6), row


def test_changed_prices_are_reported(
    cloud: LocalCloud,
    project: Project,
    change_catalog: Callable[[Edit], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["prices"]["v3-8"]["us-central1-a"] = [2.5, 0]
        data["prices"]["v3-8"]["us-west4-b"] = [2.0, 0.5]

    change_catalog(edit)
    data = data_of(capsys, "prices", "v3-8", "--live")
    differences = {
        (entry["zone"], entry["capacity"]): (entry["catalog"], entry["google"])
        for entry in data["live"]["differences"]
    }
    assert differences == {
        ("us-central1-a", "on-demand"): (10.0, 8.0),
        ("us-central1-a", "spot"): (None, pytest.approx(2.04)),
        ("us-west4-b", "on-demand"): (8.0, None),
        ("us-west4-b", "spot"): (2.0, None),
    }
    text = " ".join(output_of(capsys, "prices", "v3-8", "--live").split())
    assert "Changed: v3-8 in us-central1-a, on demand: $8.00; the catalog has $10.00." in text
    assert "No clear SKU for v3-8 in us-west4-b, spot; the catalog has $2.00." in text
    paid = data_of(capsys, "prices", "--live", "v3-8", "--budget", "8/h", "--capacity", "on-demand")
    assert "us-central1-a" in {row["zone"] for row in paid["offers"]}, "with Google's price"


def test_live_quota_by_zone(
    bench: Bench, project: Project, cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {
        "TPUV3sPerProjectPerZoneForTPUAPI": {
            **dict.fromkeys(("us-central1-a", "us-central1-f", "us-east1-d"), 40),
            ZONE: 16,
            "us-central1-b": 0,
        },
        "TPUV3sPerProjectPerRegionForTPUAPI": {"us-central1": 24},
        "IN_USE_ADDRESSES": {"us-east1": 1},
    }
    remote_control.change_settings(cloud, quota=limits)
    try:
        data = data_of(capsys, "quota", "v3-8", "--project", project.id, "--capacity", "on-demand")
        text = output_of(capsys, "quota", "v3-8", "--project", project.id, "--capacity=on-demand")
    finally:
        remote_control.change_settings(cloud, quota=dict.fromkeys(limits))
    rows = [
        (row["zone"], row["limit"], row["usage"], row["nodes"], row["limited_by"])
        for row in data["live"]["zones"]
    ]
    assert rows == [
        ("us-central1-a", 40, 0, 3, "region"),
        ("us-central1-f", 40, 0, 3, "region"),
        (ZONE, 16, 8, 1, "zone"),
        ("us-east1-d", 40, 0, 1, "addresses"),
        ("us-central1-b", 0, 0, 0, "zone"),
    ]
    more = data["live"]["increase"]
    assert f"project={project.id}" in more["url"]
    assert more["command"] == (
        f"gcloud quotas preferences create --project={project.id} "
        "--service=tpu.googleapis.com --quota-id=TPUV3sPerProjectPerZoneForTPUAPI "
        "--dimensions=zone=us-central1-b --preferred-value=8"
    )
    typed = text[text.index("gcloud") :].replace("\\\n", " ")
    assert typed.split() == more["command"].split()


def test_live_quota_has_pools_of_both_apis(
    bench: Bench, project: Project, cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {
        "TPUV6EPerProjectPerZoneForTPUAPI": {"us-east5-a": 512, "europe-west4-a": 512},
        "TPUS-PER-TPU-FAMILY-per-project-region": {"us-east5": 0, "europe-west4": 32},
    }
    remote_control.change_settings(cloud, quota=limits)
    options = ("v6e-16", "--zone", "us-east5-a,europe-west4-a", "--capacity", "on-demand")
    try:
        data = data_of(capsys, "quota", *options, "--project", project.id)
        text = output_of(capsys, "quota", *options, "--project", project.id)
    finally:
        remote_control.change_settings(cloud, quota=dict.fromkeys(limits))
    rows = {
        (row["zone"], row["api"]): (row["limit"], row["nodes"]) for row in data["live"]["zones"]
    }
    assert rows == {
        ("us-east5-a", "tpu"): (512, 32),
        ("us-east5-a", "compute"): (0, 0),
        ("europe-west4-a", "tpu"): (512, 32),
        ("europe-west4-a", "compute"): (32, 2),
    }
    increase = data["live"]["increase"]
    assert "service=compute.googleapis.com" in increase["url"]
    assert (
        "--service=compute.googleapis.com --quota-id=TPUS-PER-TPU-FAMILY-per-project-region"
        " --dimensions=region=us-east5,tpu_family=CT6E --preferred-value=16"
    ) in increase["command"]
    assert "Each API has its own quota pools" in text
    remote_control.add_fault(cloud, "deny", method="*GetConsumerQuotaMetric", times="unlimited")
    data = data_of(capsys, "quota", *options, "--project", project.id)
    rows = {(row["zone"], row["api"]): row["limit_known"] for row in data["live"]["zones"]}
    assert rows["us-east5-a", "tpu"], "the other API answers"
    assert not rows["us-east5-a", "compute"]
    assert data["live"]["unavailable"] == [
        "TPU quota of Compute Engine could not be read: permission denied"
    ]
    table = text.partition("To request more")[0]
    assert all(len(line) <= 80 for line in table.splitlines())
