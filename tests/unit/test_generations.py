"""All data about TPU generations is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpuctl.catalog import quota_limits, runtime_for
from tpuctl.catalog.tpu import accelerator_types, data
from tpuctl.emulator.machines.servers.metadata_tree import HOST_TYPES
from tpuctl.preflight.rehearsal.estimate import PEAK_FLOPS

CATALOG = "tpuctl/catalog/tpu.json"


def missing_data(generation: str) -> Iterator[str]:
    """The files that lack data about the generation."""
    rows = data()["types"].get(generation, ())
    if not rows:
        yield f"{CATALOG}: types"
    for price_class in {row[-1] for row in rows} - data()["prices"].keys():
        yield f"{CATALOG}: prices.{price_class}"
        return
    if generation not in HOST_TYPES:
        yield "tpuctl/emulator/machines/servers/metadata_tree.py: HOST_TYPES"
    if generation not in PEAK_FLOPS:
        yield "tpuctl/preflight/rehearsal/estimate.py: PEAK_FLOPS"
    if not data()["generations"][generation]["tpu_api"]:
        return
    types = [
        accelerator
        for accelerator in accelerator_types().values()
        if accelerator.generation == generation and accelerator.in_tpu_api
    ]
    if not all(map(runtime_for, types)):
        yield f"{CATALOG}: runtimes"
    if not all(quota_limits(accelerator, spot=False) for accelerator in types):
        yield "tpuctl/catalog/quota.py"


@pytest.mark.parametrize("generation", data()["generations"])
def test_every_generation_has_all_data(generation: str) -> None:
    assert [*missing_data(generation)] == []


def test_types_match_generations() -> None:
    assert data()["types"].keys() == data()["generations"].keys()
