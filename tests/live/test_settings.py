"""The settings of a live run, its announcement, and invalid settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.live.harness.settings import InvalidSettings, Settings, default_type
from tpuctl.catalog import accelerator_type, accelerator_types, node_price
from tpuctl.model.stack.stack import load_stack

RUN = Path(__file__).with_name("run.py")
ENVIRONMENT = {"TPUCTL_LIVE_PROJECT": "my-project"}


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run `make live`'s program without a terminal."""
    variables = {name: value for name, value in os.environ.items() if "TPUCTL_LIVE" not in name}
    return subprocess.run(
        [sys.executable, RUN],
        env=variables | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_missing_project_prints_usage() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "TPUCTL_LIVE_PROJECT" in done.stderr
    assert len(done.stderr.splitlines()) <= 12


def test_run_without_terminal_requires_yes(tmp_path: Path) -> None:
    done = run(**ENVIRONMENT, TPUCTL_LIVE_FOLDER=str(tmp_path))
    assert done.returncode == 2
    assert "TPUCTL_LIVE_YES=1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_credentials_name_gcloud_command(tmp_path: Path) -> None:
    done = run(
        **ENVIRONMENT,
        TPUCTL_LIVE_FOLDER=str(tmp_path),
        TPUCTL_LIVE_YES="1",
        CLOUDSDK_CONFIG=str(tmp_path / "gcloud"),
        GOOGLE_APPLICATION_CREDENTIALS="",
        NO_GCE_CHECK="true",
    )
    assert done.returncode == 2, done.stderr
    assert "gcloud auth application-default login" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_announcement_has_cost_and_price_date() -> None:
    expected = ENVIRONMENT | {
        "TPUCTL_LIVE_TYPE": "v2-8",
        "TPUCTL_LIVE_ZONES": "europe-west4-a",
        "TPUCTL_LIVE_MINUTES": "60",
    }
    settings = Settings.from_environment(expected)
    price = node_price(settings.accelerator, "europe-west4-a", spot=True)
    assert price is not None
    announcement = settings.announcement()
    for part in ("v2-8 (spot)", "europe-west4-a", f"prices of {price.read}", "after 60"):
        assert part in announcement
    cost = settings.cost().per_hour
    assert cost is not None
    assert price.per_hour < cost < price.per_hour * 1.05
    assert f"${cost:.2f}." in announcement, "an hour at most costs an hour's price"
    assert f"down --stack {settings.stack} --project my-project" in announcement


def test_cost_uses_most_expensive_zone() -> None:
    zones = ("us-central1-a", "europe-west4-b")
    expected = ENVIRONMENT | {
        "TPUCTL_LIVE_TYPE": "v5litepod-1",
        "TPUCTL_LIVE_ZONES": ", ".join(zones),
    }
    accelerator = accelerator_type("v5litepod-1")
    assert accelerator is not None
    prices = [node_price(accelerator, zone, spot=True) for zone in zones]
    dearest = max(price.per_hour for price in prices if price is not None)
    assert Settings.from_environment(expected).cost().lines[0].per_hour == dearest


def test_default_type_is_the_cheapest() -> None:
    settings = Settings.from_environment(ENVIRONMENT)
    assert settings.type_name == default_type()
    price = node_price(settings.accelerator, settings.zones[0], spot=True)
    assert price is not None
    for other in accelerator_types().values():
        if other.workers == 1 and other.in_tpu_api:
            for zone in other.zones:
                other_price = node_price(other, zone, spot=True)
                assert other_price is None or other_price.per_hour >= price.per_hour


def test_stack_names_are_unique() -> None:
    names = {Settings.from_environment(ENVIRONMENT).stack for _ in range(20)}
    assert len(names) == 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"TPUCTL_LIVE_CLOUD": "azure"}, "google or local"),
        ({"TPUCTL_LIVE_TYPE": "v9-8"}, "v9-8"),
        ({"TPUCTL_LIVE_ZONES": "us-central1-z"}, "us-central1-z"),
        ({"TPUCTL_LIVE_CAPACITY": "free"}, "spot or on-demand"),
        ({"TPUCTL_LIVE_MINUTES": "0"}, "MINUTES"),
        ({"TPUCTL_LIVE_MINUTES": "1e9"}, "MINUTES"),
        ({"TPUCTL_LIVE_MINUTES": "100000"}, "MINUTES"),
    ],
)
def test_invalid_settings_are_rejected(changed: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        Settings.from_environment(ENVIRONMENT | changed)


@pytest.mark.parametrize("capacity", ["spot", "on-demand"])
def test_stack_file_limits_lifetime(tmp_path: Path, capacity: str) -> None:
    variables = {"TPUCTL_LIVE_MINUTES": "30", "TPUCTL_LIVE_CAPACITY": capacity}
    settings = Settings.from_environment(ENVIRONMENT | variables)
    path = tmp_path / "tpuctl.yaml"
    path.write_text(settings.stack_file(), "utf-8")
    assert yaml.safe_load(settings.stack_file())["limits"]["max_hours"] == 0.5
    stack = load_stack(path)
    assert stack.file.limits.max_hours == 0.5
    assert (stack.name, stack.project) == (settings.stack, "my-project")
    assert stack.is_spot == (capacity == "spot")
    assert stack.zones == settings.zones


def test_saved_settings_load_unchanged(tmp_path: Path) -> None:
    settings = Settings.from_environment(ENVIRONMENT)
    settings.save(tmp_path / "run.json")
    assert Settings.load(tmp_path / "run.json") == settings
