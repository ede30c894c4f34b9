"""The prices on the costs page match the catalog."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest

from tests.docs.page_blocks import ROOT
from tpuctl.cli.main import run

PAGE = (ROOT / "docs" / "guides" / "costs.md").read_text("utf-8")
ROWS = re.findall(r"^\| `([\w-]+)` \| (\d+) \| \$([\d.]+) \| \$([\d.]+) \|$", PAGE, re.MULTILINE)


def json_data(*arguments: str) -> dict[str, object]:
    """The data of a command's JSON answer."""
    answer = io.StringIO()
    with contextlib.redirect_stdout(answer):
        assert run([*arguments, "--json"]) == 0
    data: dict[str, object] = json.loads(answer.getvalue())["data"]
    return data


def test_page_has_figures() -> None:
    assert len(ROWS) > 5


@pytest.mark.parametrize(("name", "chips", "on_demand", "spot"), ROWS)
def test_prices_are_the_cheapest(name: str, chips: str, on_demand: str, spot: str) -> None:
    data = json_data("prices", name)
    assert str(data["as_of"]) in PAGE
    prices = data["prices"]
    assert isinstance(prices, list)
    for price, kind in ((on_demand, "on_demand"), (spot, "spot")):
        cheapest = min(row[kind] for row in prices if row[kind])
        assert float(price) == pytest.approx(cheapest, rel=0.005)
    assert int(chips) >= 1


def test_other_prices_match_catalog() -> None:
    machines = json_data("prices", "--machines", "--region", "us-central1")["machines"]
    disks = json_data("prices", "--disks", "--region", "us-central1")["disks"]
    storage = json_data("prices", "--storage", "--region", "us-central1")["storage"]
    assert isinstance(machines, list)
    assert isinstance(disks, list)
    assert isinstance(storage, list)
    machine = next(row for row in machines if row["machine_type"] == "n1-standard-1")
    assert f"${machine['on_demand']:.4f} an hour" in PAGE
    assert f"pd-standard in us-central1: ${disks[0]['pd-standard']:.2f} per GB" in PAGE
    home = next(row for row in storage if row["location"] == "us-central1")
    assert f"${home['gb_month']:.2f} per GB per month in us-central1" in PAGE
