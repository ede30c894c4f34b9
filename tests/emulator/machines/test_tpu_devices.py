"""The devices that programs on a TPU's machines find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.emulator.machines.conftest import Lab
from tests.support.machine_specs import worker_spec
from tpuctl.emulator.machines.interface import Endpoint, MachineSpec

DEVICES = "echo $TPUCTL_TPU_DEVICES $TPUCTL_TPU_SLICE_DEVICES"
HOOKED = "import sys; print('_tpuctl.simulated_tpu.machine' in sys.modules)"


def spec_of(type_name: str, workers: int, **fields: object) -> MachineSpec:
    endpoints = [Endpoint(f"127.0.0.{number + 1}") for number in range(workers)]
    return worker_spec(*endpoints, accelerator_type=type_name, **fields)


# Two TensorCores are one device since v4 (megacore), and two devices before and of TPU7x.
@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        (spec_of("v2-8", 1), (8, 8)),
        (spec_of("v3-32", 4), (8, 32)),
        (spec_of("v4-8", 1), (4, 4)),
        (spec_of("v5p-16", 2), (4, 8)),
        (spec_of("v5litepod-1", 1), (1, 1)),
        (spec_of("v5litepod-8", 1), (8, 8)),
        (spec_of("v5litepod-16", 4), (4, 16)),
        (spec_of("v6e-256", 64), (4, 256)),
        (spec_of("tpu7x-16", 2, kind="instance"), (8, 16)),
    ],
    ids=lambda value: value.accelerator_type if isinstance(value, MachineSpec) else "",
)
def test_workers_have_the_types_devices(spec: MachineSpec, devices: tuple[int, int]) -> None:
    assert (spec.devices, spec.slice_devices) == devices


def test_instance_without_chips_has_none() -> None:
    spec = replace(spec_of("", 1), kind="instance")
    assert (spec.devices, spec.slice_devices) == (0, 0)


async def test_every_python_of_a_worker_has_its_devices(booted: Lab) -> None:
    """With its own import path, isolated, and in an environment that a user has created."""
    assert (await booted.run(DEVICES)).out.split() == ["8", "8"]  # v3-8
    for command in (
        "python3",
        "PYTHONPATH=/tmp python3",
        "python3 -I",
        "python3 -m venv --without-pip own && own/bin/python",
    ):
        done = await booted.run(f'{command} -c "{HOOKED}"')
        assert (done.out, done.error) == ("True\n", ""), command


async def test_limit_lowers_devices_of_new_programs(booted: Lab) -> None:
    booted.host.device_limit = lambda: 2
    assert (await booted.run(DEVICES)).out.split() == ["2", "2"]
    booted.host.device_limit = lambda: 0
    assert (await booted.run(DEVICES)).out.split() == ["8", "8"]
