"""The settings of a live run from environment variables, and its maximum cost."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tpuctl.catalog import (
    AcceleratorType,
    accelerator_type,
    accelerator_types,
    base_runtime,
    node_price,
    region_of,
)
from tpuctl.model.cost.cost import Cost, address_cost, node_cost, storage_cost
from tpuctl.units import dollars

ROOT = Path(__file__).resolve().parents[3]
# TPU VMs were reported to take 3 to 10 minutes to create, and some more to delete.
EXPECTED_MINUTES = 20
LIMIT_MINUTES = 45
MAX_MINUTES = 240
NODE_TYPE = "v2-8"
ZONES = 4  # how many of the cheapest are tried in turn
STORED_BYTES = 1 << 20
USAGE = """\
`make live` runs the flow tests against a project of yours on Google Cloud. It costs a little
money. Configure it with environment variables:
    TPUCTL_LIVE_PROJECT   the project's id; billing must be enabled
    TPUCTL_LIVE_TYPE      the TPU type (default: the cheapest, {type})
    TPUCTL_LIVE_ZONES     its zones, in order (default: the cheapest, {zones})
    TPUCTL_LIVE_CAPACITY  spot (default) or on-demand
    TPUCTL_LIVE_MINUTES   the maximum duration of a run (default: {minutes})
    TPUCTL_LIVE_YES=1     do not ask for confirmation
    TPUCTL_LIVE_CLOUD     google (default), or local: the same tests on this machine, for free
Sign in first: gcloud auth application-default login"""


class InvalidSettings(Exception):
    """Missing or invalid settings in the environment."""


@dataclass(frozen=True)
class Settings:
    """One run. All its resource names begin with `stack`, which is unique."""

    cloud: str  # google or local
    project: str
    type_name: str
    zones: tuple[str, ...]
    capacity: str
    minutes: float
    stack: str
    folder: Path  # of the output
    local_home: str = ""  # of a running local cloud; empty: start a separate one

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings; raises InvalidSettings if some are missing or invalid."""

        def get(name: str, default: str = "") -> str:
            return environment.get(f"TPUCTL_LIVE_{name}", "").strip() or default

        cloud = get("CLOUD", "google")
        if cloud not in ("google", "local"):
            raise InvalidSettings(f"TPUCTL_LIVE_CLOUD is google or local, not {cloud}")
        project = get("PROJECT", "local-project" if cloud == "local" else "")
        if not project:
            raise InvalidSettings(usage())
        type_name = get("TYPE", default_type())
        accelerator = accelerator_type(type_name)
        if accelerator is None or base_runtime(accelerator) is None:
            raise InvalidSettings(f"TPUCTL_LIVE_TYPE: {type_name} is no type of TPU VMs")
        capacity = get("CAPACITY", "spot")
        if capacity not in ("spot", "on-demand"):
            raise InvalidSettings(f"TPUCTL_LIVE_CAPACITY is spot or on-demand, not {capacity}")
        text = get("ZONES", get("ZONE"))
        zones = tuple(zone for zone in text.replace(",", " ").split() if zone)
        wrong = [unknown for unknown in zones if unknown not in accelerator.zones]
        if wrong:
            raise InvalidSettings(f"TPUCTL_LIVE_ZONES: {type_name} is not offered in {wrong[0]}")
        minutes = get("MINUTES", str(LIMIT_MINUTES))
        if not re.fullmatch(r"\d+(\.\d+)?", minutes) or not 0 < float(minutes) <= MAX_MINUTES:
            raise InvalidSettings(
                f"TPUCTL_LIVE_MINUTES is a number up to {MAX_MINUTES}, not {minutes}"
            )
        return cls(
            cloud=cloud,
            project=project,
            type_name=type_name,
            zones=zones or default_zones(accelerator, capacity),
            capacity=capacity,
            minutes=float(minutes),
            stack=f"live-{secrets.token_hex(4)}",
            folder=Path(get("FOLDER", str(ROOT / "build" / "live"))).absolute(),
            local_home=get("LOCAL_HOME"),
        )

    @classmethod
    def load(cls, path: Path) -> Settings:
        values = json.loads(path.read_text("utf-8"))
        return cls(
            **{**values, "zones": tuple(values["zones"]), "folder": Path(values["folder"])},
        )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str), "utf-8")

    @property
    def accelerator(self) -> AcceleratorType:
        accelerator = accelerator_type(self.type_name)
        assert accelerator is not None, "checked when it was read"
        return accelerator

    @property
    def runtime(self) -> str:
        runtime = base_runtime(self.accelerator)
        assert runtime is not None, "checked when it was read"
        return runtime.version

    @property
    def node_stack(self) -> str:
        """The stack of the TPU node (API v1), which most projects are denied."""
        return f"{self.stack}-v1"

    @property
    def stacks(self) -> tuple[str, str]:
        return self.stack, self.node_stack

    @property
    def record(self) -> Path:
        """The file of the run's record."""
        return self.folder / f"{self.cloud}.json"

    @property
    def transcript(self) -> Path:
        """The file of the run's calls, for `tpuctl local replay`."""
        return self.folder / f"{self.cloud}.jsonl"

    def stack_file(self) -> str:
        """The stack. Its watchdog deletes it even if this computer fails.

        Zones may be in several regions: the tests read only a few thousand bytes from the bucket.
        """
        return (
            f"stack: {self.stack}\n"
            f"project: {{id: {self.project}}}\n"
            f"tpu: {{type: {self.type_name}, runtime: {self.runtime}, "
            f"zones: [{', '.join(self.zones)}], capacity: {self.capacity}}}\n"
            "bucket: {keep: false, allow_egress: true}\n"
            f"limits: {{max_hours: {self.minutes / 60:.4f}, idle: 20m}}\n"
        )

    def down_command(self, stack: str) -> str:
        """The command that deletes everything of a stack, from any folder."""
        cloud = "" if self.cloud == "google" else f"--cloud {self.cloud} "
        return f"tpuctl {cloud}down --stack {stack} --project {self.project} --delete-bucket"

    def cost(self) -> Cost:
        """Per hour, in the most expensive of the zones."""
        prices = _prices(self.accelerator, self.capacity)
        zone = max(self.zones, key=lambda zone: prices.get(zone, 0.0))
        return Cost(
            (
                node_cost(self.type_name, zone, capacity=self.capacity),  # type: ignore[arg-type]
                address_cost(spot=self.capacity == "spot"),
                storage_cost(region_of(self.zones[0]), STORED_BYTES),
            )
        )

    def announcement(self) -> str:
        """What will be created, what it costs, and how to delete it if this program is killed."""
        lines = [
            f"Stack {self.stack} on {self.cloud}, project {self.project}: {self.type_name} "
            f"({self.capacity}) in {' or '.join(self.zones)}."
        ]
        if self.cloud == "local":
            return f"{lines[0]} The local cloud is free."
        cost = self.cost()
        lines += [f"  {line}" for line in str(cost).splitlines()]
        hour = cost.per_hour
        if hour is None:
            lines.append("The cost is unknown: no price is published.")
        else:
            shortest = min(EXPECTED_MINUTES, self.minutes)
            lines.append(
                f"About {shortest:g} minutes cost {dollars(hour * shortest / 60)}. A run stops "
                f"after {self.minutes:g} minutes, at most {dollars(hour * self.minutes / 60)}."
            )
        node_rate = min(_node_prices().values())
        lines += [
            "A TPU node (API v1) is requested too, which most projects are denied. If it is",
            f"created, it is deleted immediately: a few minutes of {dollars(node_rate)}/h.",
            "Everything is deleted at the end. If this program is killed, the node deletes itself",
            f"after {self.minutes:g} minutes; delete the rest with",
            *(f"    {self.down_command(stack)}" for stack in self.stacks),
        ]
        return "\n".join(lines)


def usage() -> str:
    """A few lines that say how to use `make live`."""
    accelerator = accelerator_type(default_type())
    assert accelerator is not None
    zones = " ".join(default_zones(accelerator, "spot"))
    return USAGE.format(type=accelerator.name, zones=zones, minutes=LIMIT_MINUTES)


def node_zone() -> str:
    """The cheapest zone of the TPU node."""
    return next(iter(_node_prices()))


def _node_prices() -> dict[str, float]:
    accelerator = accelerator_type(NODE_TYPE)
    assert accelerator is not None
    return _prices(accelerator, "preemptible")


def default_type() -> str:
    """The TPU VM type of one worker with the lowest spot price in any zone."""
    prices = [
        (min(per_hour.values()), accelerator.name)
        for accelerator in accelerator_types().values()
        if accelerator.workers == 1 and base_runtime(accelerator) is not None
        if (per_hour := _prices(accelerator, "spot"))
    ]
    return min(prices)[1]


def default_zones(accelerator: AcceleratorType, capacity: str) -> tuple[str, ...]:
    """The cheapest zones; those without a price last."""
    zones = [*_prices(accelerator, capacity), *sorted(accelerator.zones)]
    return tuple(dict.fromkeys(zones))[:ZONES]


def _prices(accelerator: AcceleratorType, capacity: str) -> dict[str, float]:
    """Prices per hour by zone, cheapest first; without zones that have none."""
    offers = (
        (zone, node_price(accelerator, zone, capacity=capacity))  # type: ignore[arg-type]
        for zone in sorted(accelerator.zones)
    )
    prices = [(zone, price.per_hour) for zone, price in offers if price is not None]
    return dict(sorted(prices, key=lambda price: price[1]))
