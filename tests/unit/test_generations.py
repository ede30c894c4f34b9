"""All that must be said of a TPU generation is said, of every generation there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpuctl.catalog import quota_limits, runtime_for
from tpuctl.catalog.tpu import accelerator_types, data
from tpuctl.emulator.machines.metadata_tree import HOST_TYPES
from tpuctl.preflight.rehearsal.estimate import PEAK

CATALOG = "tpuctl/catalog/tpu.toml"


def unsaid(generation: str) -> Iterator[str]:
    """The places in which something of the generation is missing."""
    rows = data()["types"].get(generation, ())
    if not rows:
        yield f"{CATALOG}: types"
    for price_class in {row[-1] for row in rows} - data()["prices"].keys():
        yield f"{CATALOG}: prices.{price_class}"
        return
    if generation not in HOST_TYPES:
        yield "tpuctl/emulator/machines/metadata_tree.py: HOST_TYPES"
    if not data()["generations"][generation]["tpu_api"]:
        return
    if generation not in PEAK:
        yield "tpuctl/preflight/rehearsal/estimate.py: PEAK"
    types = [one for one in accelerator_types().values() if one.generation == generation]
    if not all(map(runtime_for, types)):
        yield f"{CATALOG}: runtimes"
    if not all(quota_limits(one, spot=False) for one in types):
        yield "tpuctl/catalog/quota.py"


@pytest.mark.parametrize("generation", data()["generations"])
def test_everything_is_said_of_every_generation(generation: str) -> None:
    assert [*unsaid(generation)] == []


def test_types_are_of_generations() -> None:
    assert data()["types"].keys() == data()["generations"].keys()
