"""The cost of a stack: lines, sums, unknown prices, and their display."""

from __future__ import annotations

import pytest

from tpuctl.catalog import accelerator_type
from tpuctl.model.cost.cost import (
    Cost,
    CostLine,
    address_cost,
    controller_cost,
    disk_cost,
    egress_price,
    nat_cost,
    node_cost,
    spent,
    storage_cost,
)
from tpuctl.view.responses.stacks import Cost as CostResponse
from tpuctl.view.stack.cost import cost_sentence, print_cost

# Published: v3-8 in europe-west4-a 2.2 a chip of 4; n1-standard-1 there 0.052292; per GB per month
# of pd-standard 0.044, pd-balanced 0.11, storage 0.02; an address 0.005, on spot 0.0025.
NODE = node_cost("v3-8", "europe-west4-a")
CONTROLLER, BOOT_DISK = controller_cost("n1-standard-1", "europe-west4-a", disk_gb=50)
UNKNOWN_PRICE = CostLine("moon", None, "no price is published", "")


def test_node_cost() -> None:
    assert NODE.item == "node v3-8 in europe-west4-a"
    assert NODE.per_hour == pytest.approx(8.8)
    assert (NODE.note, NODE.read, NODE.amount) == ("on demand", "mid-2026", "$8.80/h")
    accelerator = accelerator_type("v3-8")
    assert accelerator is not None
    assert node_cost(accelerator, "europe-west4-a") == NODE
    line = node_cost("v3-8", "europe-west4-a", capacity="spot", nodes=3)
    assert line.item == "3 nodes v3-8 in europe-west4-a"
    assert line.per_hour == pytest.approx(3 * 2.244)
    assert line.note == "spot, floats, $2.24/h each"


@pytest.mark.parametrize(
    "line",
    [
        node_cost("v6e-8", "us-central1-a", capacity="flex-start"),
        node_cost("v6e-8", "us-central2-b"),
        node_cost("v9-8", "us-central1-a"),
        storage_cost("us-central2"),
        disk_cost("pd-standard", 10, "us-central2-b"),
        disk_cost("pd-extreme", 10, "us-central1-a"),
        *controller_cost("n1-standard-1", "us-central2-b", disk_gb=10),
        controller_cost("m1-ultramem-160", "us-central1-a", disk_gb=10)[0],
    ],
)
def test_unpublished_price_is_unknown_not_zero(line: CostLine) -> None:
    assert (line.per_hour, line.amount, line.read) == (None, "unknown", "")
    assert line.note == "no price is published"


def test_controller_and_disk_cost() -> None:
    assert CONTROLLER.item == "controller n1-standard-1 in europe-west4-a"
    assert CONTROLLER.per_hour == pytest.approx(0.052292)
    assert CONTROLLER.amount == "$0.0523/h"
    assert BOOT_DISK.item == "controller's disk, 50 GB pd-standard"
    assert BOOT_DISK.per_hour == pytest.approx(50 * 0.044 / 730)
    assert BOOT_DISK.note == "$0.044 per GB per month"
    spot, _ = controller_cost("n1-standard-1", "europe-west4-a", disk_gb=50, spot=True)
    assert spot.per_hour == pytest.approx(0.0303825)
    machine, disk = controller_cost("n1-standard-1", "us-east5-a", disk_gb=50)
    assert (machine.per_hour, machine.note) == (None, "n1 is not offered in us-east5")
    assert disk.per_hour is not None
    line = disk_cost("pd-balanced", 1000, "europe-west4-a", count=2)
    assert line.item == "2 data disks, 1,000 GB pd-balanced each"
    assert line.per_hour == pytest.approx(2 * 1000 * 0.11 / 730)
    general = disk_cost("hyperdisk-balanced", 100, "europe-west4-a")
    assert general.note == "$0.08 per GB per month, same price for all regions"


@pytest.mark.parametrize(
    ("bytes_stored", "item", "gigabytes"),
    [
        (0, "bucket in europe-west4, empty", 0),
        (1, "bucket in europe-west4, 1 byte", 1 / 2**30),
        (3 * 2**29, "bucket in europe-west4, 1.5 GB", 1.5),
        (5000 * 2**30, "bucket in europe-west4, 5,000.0 GB", 5000),
    ],
)
def test_storage_cost_per_gb_and_month(bytes_stored: int, item: str, gigabytes: float) -> None:
    line = storage_cost("EUROPE-WEST4", bytes_stored)
    assert line.item == item
    assert line.per_hour == pytest.approx(gigabytes * 0.02 / 730)
    assert line.note == "$0.02 per GB per month"


def test_address_and_egress_cost() -> None:
    assert address_cost().item == "external address"
    assert address_cost(4).per_hour == pytest.approx(0.02)
    assert address_cost(4).note == "on demand, $0.005/h each"
    assert address_cost(4, spot=True).per_hour == pytest.approx(0.01)
    rate = egress_price("us-central1", "europe-west4")
    assert str(rate) == "$0.05 per GB"
    assert rate is not None and rate.read == "mid-2026"
    same = egress_price("europe-west4", "europe-west4")
    assert same is not None and same.amount == 0
    assert egress_price("northamerica-south1", "europe-west4") is None


def test_nat_cost() -> None:
    """cloud.google.com/nat/pricing: capped at 32 machines; its address costs as others in use."""
    assert nat_cost(4).per_hour == pytest.approx(4 * 0.0014 + 0.005)
    assert nat_cost(64).per_hour == pytest.approx(0.044 + 0.005)
    assert str(nat_cost(4)) == (
        "Cloud NAT for 4 machines: $0.0106/h (with its address; traffic $0.045 per GB)"
    )


def test_cost_sum() -> None:
    cost = Cost((NODE, CONTROLLER, BOOT_DISK, storage_cost("europe-west4"), address_cost()))
    hourly = 8.8 + 0.052292 + 50 * 0.044 / 730 + 0 + 0.005
    assert cost.per_hour == pytest.approx(hourly)
    assert cost.per_month == pytest.approx(hourly * 730)
    assert cost.is_complete
    assert cost.read == "mid-2026"
    assert str(cost).splitlines() == [
        "node v3-8 in europe-west4-a: $8.80/h (on demand)",
        "controller n1-standard-1 in europe-west4-a: $0.0523/h (on demand)",
        "controller's disk, 50 GB pd-standard: $0.00301/h ($0.044 per GB per month)",
        "bucket in europe-west4, empty: $0.00/h ($0.02 per GB per month)",
        "external address: $0.005/h (on demand)",
        "total: $8.86/h, prices of mid-2026",
    ]


def test_sum_with_unknown_price_is_a_minimum() -> None:
    cost = Cost((NODE, UNKNOWN_PRICE))
    assert cost.per_hour == pytest.approx(8.8)
    assert not cost.is_complete
    assert cost.unknown == (UNKNOWN_PRICE,)
    assert cost.amount == "at least $8.80/h"
    cost = Cost((UNKNOWN_PRICE,))
    assert (cost.per_hour, cost.per_month, cost.amount) == (None, None, "unknown")
    assert str(cost).splitlines()[-1] == "total: unknown"
    cost = Cost(())
    assert (cost.per_hour, cost.is_complete, cost.amount) == (0, True, "$0.00/h")
    # The dates of all prices are reported.
    flex = node_cost("v6e-8", "europe-west4-a", capacity="flex-start")
    assert Cost((NODE, flex, CONTROLLER)).read == "mid-2026, 2026-08-11"


def test_cost_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_cost(Cost((NODE, BOOT_DISK, UNKNOWN_PRICE)))
    output = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert "node v3-8 in europe-west4-a $8.80 on demand" in rows
    assert "moon unknown no price is published" in rows
    assert rows[-1] == "total at least $8.80 prices of mid-2026"
    assert max(len(line.rstrip()) for line in output.splitlines()) <= 80
    print_cost(Cost((NODE,)), is_free=True)
    assert capsys.readouterr().out.startswith("charged on Google ")
    print_cost(Cost((NODE,)))
    assert "Google" not in capsys.readouterr().out


def test_sentence_names_who_charges() -> None:
    cost, unknown = Cost((NODE,)), Cost((UNKNOWN_PRICE,))
    assert cost_sentence(cost, is_free=False) == "This stack costs $8.80/h, prices of mid-2026."
    assert cost_sentence(cost, is_free=True) == (
        "The local cloud is free. On Google this stack costs $8.80/h, prices of mid-2026."
    )
    assert cost_sentence(unknown, is_free=False) == "The price of this stack is unknown."
    assert cost_sentence(unknown, is_free=True) == (
        "The local cloud is free. On Google the price of this stack is unknown."
    )
    assert spent([NODE, CONTROLLER], 2.5) == pytest.approx(2.5 * 8.852292)
    assert spent([NODE, UNKNOWN_PRICE], 2) == pytest.approx(17.6)
    assert spent([UNKNOWN_PRICE], 2) is None
    assert spent([], 2) == 0


def test_cost_data() -> None:
    data = CostResponse.model_validate(Cost((NODE, UNKNOWN_PRICE)))
    assert data.as_json() == {
        "currency": "USD",
        "per_hour": 8.8,
        "per_month": 6424.0,
        "complete": False,
        "as_of": "mid-2026",
        "lines": [
            {
                "item": "node v3-8 in europe-west4-a",
                "per_hour": 8.8,
                "note": "on demand",
                "as_of": "mid-2026",
            },
            {"item": "moon", "per_hour": None, "note": "no price is published", "as_of": ""},
        ],
    }
