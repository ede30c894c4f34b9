"""The output of the catalog commands, compared with its data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpuctl.catalog import APIS
from tpuctl.catalog.tpu import data
from tpuctl.cli.main import run

DATA = data()
GENERATIONS = {row[0]: name for name, rows in DATA["types"].items() for row in rows}
CHIPS = {row[0]: row[1] for rows in DATA["types"].values() for row in rows}
CLASSES = {row[0]: row[5] for rows in DATA["types"].values() for row in rows}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)["data"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert run([*arguments, "--json"]) == 2
    (diagnostic,) = json.loads(capsys.readouterr().out)["diagnostics"]
    return dict(diagnostic)


def per_chip(name: str, column: int) -> dict[str, float]:
    """Zones with a price in the data file: the first column is on demand, the second spot."""
    return {zone: row[column] for zone, row in DATA["prices"][CLASSES[name]].items() if row[column]}


@pytest.mark.parametrize(
    ("options", "is_meant"),
    [
        (["--type", "v3-8"], lambda name: name == "v3-8"),
        (["--type", "v5e"], lambda name: GENERATIONS[name] == "v5e"),
        (["--type", "v6e-*,V2-8"], lambda name: name == "v2-8" or name.startswith("v6e-")),
        (["--generation", "v2,v4"], lambda name: GENERATIONS[name] in ("v2", "v4")),
        (["--min-chips", "4", "--max-chips", "8"], lambda name: 4 <= CHIPS[name] <= 8),
        (["--zone", "us-east1-d"], lambda name: "us-east1-d" in DATA["prices"][CLASSES[name]]),
        (
            ["--region", "us-east1,us-west4"],
            lambda name: any(
                zone.rpartition("-")[0] in ("us-east1", "us-west4")
                for zone in DATA["prices"][CLASSES[name]]
            ),
        ),
        (
            ["--zone", "europe-*", "--type", "v3"],
            lambda name: GENERATIONS[name] == "v3",
        ),
    ],
)
def test_types_are_filtered(
    capsys: pytest.CaptureFixture[str], options: list[str], is_meant: Any
) -> None:
    rows = answer(capsys, "types", *options)["types"]
    expected = [name for name in CHIPS if is_meant(name)]
    assert expected
    assert [row["type"] for row in rows] == expected


def test_types_show_cheapest_zone(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["type"]: row for row in answer(capsys, "types")["types"]}
    assert set(rows) == set(CHIPS)
    for name, row in rows.items():
        for column, field in enumerate(("on_demand", "spot")):
            prices = per_chip(name, column)
            if not prices:
                assert row[field] is None
                continue
            least = min(prices.values())
            assert row[field] == pytest.approx(least * CHIPS[name]), name
            assert prices[row[f"{field}_zone"]] == least
    (europe,) = answer(capsys, "types", "--type", "v3-8", "--zone", "europe-west4-a")["types"]
    assert (europe["on_demand"], europe["zones"]) == (pytest.approx(8.8), ["europe-west4-a"])


@pytest.mark.parametrize(
    ("sort", "field", "is_falling"),
    [("chips", "chips", False), ("-chips", "chips", True), ("price", "on_demand", False),
     ("-spot", "spot", True), ("HBM_GB", "hbm_gb", False)],
)  # fmt: skip
def test_rows_without_value_sort_last(
    capsys: pytest.CaptureFixture[str], sort: str, field: str, is_falling: bool
) -> None:
    values = [row[field] for row in answer(capsys, "types", "--sort", sort)["types"]]
    present = [value for value in values if value is not None]
    assert values[: len(present)] == present
    assert present == sorted(present, reverse=is_falling)


def test_tables_match_json_rows(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["types", "--generation", "v3", "--sort", "-chips", "--limit", "3"]
    rows = answer(capsys, *options)["types"]
    assert [row["type"] for row in rows] == ["v3-2048", "v3-1024", "v3-512"]
    assert run(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == [row["type"] for row in rows]
    assert all(len(line) <= 80 for line in lines)
    assert run(["types", "v6e-8", "-o", "wide"]) == 0
    header, _, line, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["type", "chips"]
    assert "spot zone" in header
    (row,) = answer(capsys, "types", "v6e-8")["types"]
    assert line.split()[-1] == row["spot_zone"]
    assert len(header) > 80


def test_zones_of_a_type_are_priced(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "zones", "--type", "v3-8", "--sort", "price")["zones"]
    prices = per_chip("v3-8", 0)
    expected = sorted(DATA["prices"]["v3-8"], key=lambda zone: (prices[zone], zone))
    assert [row["zone"] for row in rows] == expected
    assert [row["on_demand"] for row in rows] == [pytest.approx(4 * prices[z]) for z in expected]
    everything = answer(capsys, "zones")["zones"]
    assert {row["zone"] for row in everything} == {
        zone for table in DATA["prices"].values() for zone in table
    }
    most = next(row for row in everything if row["zone"] == "us-east1-d")
    here = [name for name in CHIPS if "us-east1-d" in DATA["prices"][CLASSES[name]]]
    assert (most["types"], most["most_chips"]) == (len(here), max(CHIPS[name] for name in here))


def test_runtimes_filtered_by_tensorflow_and_node_kind(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "runtimes", "--tensorflow", "2.16", "--type", "v3-8")["runtimes"]
    assert rows
    assert {row["tensorflow"] for row in rows} == {"2.16.1"}
    assert all("v3" in row["generations"] and row["hosts"] != "many" for row in rows)
    nodes = answer(capsys, "runtimes", "--nodes")["runtimes"]
    assert [row["runtime"] for row in nodes] == [
        row["version"] for row in DATA["nodes"]["versions"]
    ]
    old = answer(capsys, "runtimes", "--nodes", "--sort", "tensorflow", "--limit", "1")["runtimes"]
    versions = [row["tensorflow"] for row in DATA["nodes"]["versions"] if "tensorflow" in row]
    least = min(tuple(map(int, version.split("."))) for version in versions)
    assert tuple(map(int, old[0]["tensorflow"].split("."))) == least


def test_prices_of_generation_show_cheapest_zone_per_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = answer(capsys, "prices", "v5e", "--capacity", "spot")["offers"]
    assert [row["type"] for row in rows] == [name for name in CHIPS if GENERATIONS[name] == "v5e"]
    least = min(per_chip("v5litepod-1", 1).values())
    assert {round(row["per_chip_hour"], 9) for row in rows} == {least}
    every = answer(capsys, "prices", "v5litepod-1,v5litepod-4", "--every-zone", "--capacity=spot")
    assert len(every["offers"]) == 2 * len(per_chip("v5litepod-1", 1))


def test_budget_lists_all_affordable_offers(capsys: pytest.CaptureFixture[str]) -> None:
    """The exact matches, looked up manually in the tables."""
    data = answer(capsys, "prices", "--budget", "30/day", "--every-zone")
    assert data["budget"] == {"amount": 30, "hours": 24}
    expected = {
        (name, zone, capacity)
        for name in CHIPS
        for column, capacity in enumerate(("on-demand", "spot"))
        for zone, price in per_chip(name, column).items()
        if price * CHIPS[name] * 24 <= 30
    }
    priced = [row for row in data["offers"] if row["capacity"] != "flex-start"]
    assert {(row["type"], row["zone"], row["capacity"]) for row in priced} == expected
    assert len(priced) == len(expected) > 20
    prices = [row["per_hour"] for row in data["offers"]]
    assert prices == sorted(prices)
    for row in data["offers"]:
        assert row["cost"] == pytest.approx(row["per_hour"] * 24)
        assert row["hours"] == pytest.approx(30 / row["per_hour"])
        assert row["hours"] >= 24
    flex = {(row["type"], row["zone"]) for row in data["offers"] if row not in priced}
    assert flex == {("v5litepod-1", "us-west4-a")}, (
        "$0.60 per chip; the price in us-central1-a is unknown"
    )


def test_budget_shows_cheapest_zone_per_type(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "prices", "--budget", "100/8h", "--generation", "v3")
    pairs = [(row["type"], row["capacity"]) for row in data["offers"]]
    assert pairs == [("v3-8", "spot"), ("v3-8", "on-demand"), ("v3-32", "spot")]
    spot = min(per_chip("v3-32", 1).values()) * 16
    assert data["offers"][2]["cost"] == pytest.approx(spot * 8)
    assert run(["prices", "v3-8", "--budget", "100/8h"]) == 0
    output = capsys.readouterr().out
    zones = [line.split()[2] for line in output.splitlines() if line.startswith("v3-8")]
    assert set(zones) == set(per_chip("v3-8", 0)), "all zones of the type"
    assert "$0.005/h" in output, "an address is charged in addition"
    assert all(len(line) <= 80 for line in output.splitlines())


def test_too_small_budget_shows_cheapest_offer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["prices", "v3-8", "--budget", "10/8h"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    least = min(per_chip("v3-8", 1).values()) * 4
    assert "$10.00 for 8h is not enough" in output
    assert f"${least:.2f}/h" in output
    assert f"would last {10 / least:.1f} hours" in output


def test_quota_of_a_type_and_a_generation(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "quota", "v5litepod-16", "--capacity", "spot")
    rows = [(row["quota"], row["scope"], row["per_node"], row["unit"]) for row in data["limits"]]
    assert rows == [
        ("TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", "zone", 16, "chips"),
        ("TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI", "region", 16, "chips"),
        ("IN_USE_ADDRESSES", "region", 4, "addresses"),
    ]
    assert data["limits"][0]["default"] == 1536
    assert run(["quota", "v5litepod-16"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())
    limits = answer(capsys, "quota", "v5e")["limits"]
    assert {name for row in limits for name in row["types"]} == {
        name for name in CHIPS if GENERATIONS[name] == "v5e"
    }
    assert run(["quota", "v5e"]) == 0
    assert "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI" in capsys.readouterr().out
    assert run(["quota", "tpu7x"]) == 0
    output = capsys.readouterr().out
    assert "TPUS-PER-TPU-FAMILY-per-project-region" in output
    assert "ForTPUAPI" not in output, "the Cloud TPU API does not sell it"


def test_quota_lists_all_limits_with_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = answer(capsys, "quota")["limits"]
    by_limit = {row["quota"]: row["types"] for row in rows}
    assert by_limit["TPUV3sPerProjectPerZoneForTPUAPI"] == ["v3-8"]
    assert by_limit["TPUV5sLitepodServingPerProjectPerRegionForTPUAPI"] == [
        *("v5litepod-1", "v5litepod-4", "v5litepod-8"),
    ]
    assert by_limit["TPU-V5P-per-project-region"][:3] == ["v5p-2", "v5p-4", "v5p-8"]
    families = {row["tpu_family"] for row in rows if row["quota"].startswith("TPUS-PER")}
    assert families == {"CT6E", "TPU7X"}
    counted = {name for row in rows for name in row["types"]}
    assert counted == set(CHIPS)
    by_api = {api: {n for r in rows if r["api"] == api for n in r["types"]} for api in APIS}
    assert {GENERATIONS[name] for name in by_api["compute"]} == {"v5p", "v6e", "tpu7x"}
    assert by_api["tpu"] == {
        name for name in CHIPS if GENERATIONS[name] != "tpu7x" and name not in ("v5p-2", "v5p-4")
    }
    assert run(["quota"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "where", "hint"),
    [
        (["types", "--type", "v3-9"], "", "v3-8"),
        (["types", "--type", "v5e-7"], "", "v5litepod-8"),
        (["types", "--generation", "v5x"], "", "v5p"),
        (["types", "--zone", "europe-west4"], "", "--region europe-west4"),
        (["zones", "--region", "europe-west44"], "", "europe-west4"),
        (["types", "--sort", "chps"], "--sort", "Did you mean chips?"),
        (["zones", "--sort", "-tpyes"], "--sort", "Did you mean types?"),
        (["types", "--min-chips", "8", "--max-chips", "4"], "--max-chips", "Remove one"),
        (
            ["prices", "--zone", "us-east1-d", "--region", "us-west4"],
            "--region",
            "only one of them",
        ),
        (["prices", "--budget", "20/fortnight"], "--budget", "20/day"),
        (["prices", "--budget", "0/day"], "--budget", "20/day"),
        (["prices", "--capacity", "spt"], "--capacity", "spot"),
        (["prices", "--machines", "--budget", "5/day"], "", "one kind of price at a time"),
        (["prices", "--disks", "--region", "us-*"], "--region", "Pass one region"),
        (["quota", "v9-9"], "", "v"),
        (["types", "--live"], "--live", "--project my-project"),
        (["types", "-o", "yaml"], "-o", "Remove one"),
        (["types", "-o", "xml"], "", "--format yaml"),
        (["quota", "v5e", "--live"], "TYPE", "tpuctl types v5e"),
        (["quota", "--live", "--project", "my-project"], "", "quota v5e-8 --live"),
    ],
)
def test_invalid_filter_suggests_valid_value(
    capsys: pytest.CaptureFixture[str], arguments: list[str], where: str, hint: str
) -> None:
    diagnostic = refusal(capsys, *arguments)
    assert diagnostic["where"] == where
    assert hint in diagnostic["hint"]


@pytest.mark.parametrize("command", ["types", "zones", "runtimes", "prices", "quota"])
def test_type_option_is_accepted_like_argument(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert answer(capsys, command, "v3-8") != answer(capsys, command)
    assert answer(capsys, command, "--type", "v3-8") == answer(capsys, command, "v3-8")


@pytest.mark.parametrize("command", ["types", "zones", "runtimes", "prices", "quota"])
def test_lists_have_formats_of_same_data(capsys: pytest.CaptureFixture[str], command: str) -> None:
    data = answer(capsys, command, "v3-8")
    assert run([command, "v3-8", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == data
    assert run([command, "v3-8", "--format", "yaml"]) == 0
    text = capsys.readouterr().out
    assert "{" not in text
    answer_in_yaml = yaml.safe_load(text)
    assert (answer_in_yaml["command"], answer_in_yaml["data"]) == (command, data)


def test_no_matching_entries_is_printed_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["types", "--type", "v2-8", "--zone", "us-east5-a"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search("No matching", captured.err)
    assert answer(capsys, "types", "--type", "v2-8", "--zone", "us-east5-a")["types"] == []
    assert answer(capsys, "prices", "v3-8", "--zone", "us-west4-a")["offers"] == []
