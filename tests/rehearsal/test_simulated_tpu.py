"""Unmodified scripts on a machine of the local cloud, which has the devices of a TPU's worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.rehearsal.conftest import SCRIPTS, SHIM, Pythons, clean_environment
from tests.support.locked_environment import TORCH_LOCK, locked_python
from tests.support.subprocesses import run_captured

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
STANDARD = SCRIPTS / "standard.py"
# What a worker with four of a slice's eight devices runs, in a test of one or of all workers.
WORKER = {"TPUCTL_TPU_DEVICES": "4", "TPUCTL_TPU_SLICE_DEVICES": "8"}
JAX = """
import os
import jax, jax.numpy as jnp
jax.config.update("jax_platforms", "tpu")
print(jax.device_count(), jax.local_device_count(), len(jax.devices("tpu")))
print(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jnp.arange(4.0)))
print(os.environ["XLA_FLAGS"], sorted({device.slice_index for device in jax.devices()}))
"""
TORCH = """
import os
os.environ["PJRT_DEVICE"] = "TPU"
import torch_xla.runtime as xr
xr.use_spmd()
print(xr.device_type(), xr.global_runtime_device_count())
"""
LAUNCHED = """
import torch, torch_xla, torch_xla.core.xla_model as xm
def train(index):
    print(index, xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=torch_xla.device())).item())
if __name__ == "__main__":
    torch_xla.launch(train)
"""


def output_of(command: list[str], variables: Mapping[str, str]) -> list[str]:
    environment = {**clean_environment(), "PYTHONPATH": str(SHIM), **WORKER, **variables}
    done = run_captured(command, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_standard_script(command: list[str], name: str, replicas: int) -> None:
    lines = output_of([*command, str(STANDARD)], {"TPU_NAME": name})
    devices = [f"device:TPU:{number}" for number in range(replicas)]
    assert lines == [
        " ".join(["devices", "device:CPU:0", *devices]),
        f"replicas {replicas} {replicas}",
        "product 8.0",
        "fit learns True",
        "first loss 4.0 then less True",  # the mean of (0 - 2)^2, whatever the number of replicas
    ]


@pytest.mark.tensorflow
def test_standard_script_trains_on_all_devices(tensorflow: Path, pythons: Pythons) -> None:
    check_standard_script(pythons.command(tensorflow, ""), "local", 4)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_standard_script_trains_on_whole_slice(
    tensorflow: Path, image_python: Callable[[str], Path], pythons: Pythons
) -> None:
    """A script on the first worker that names the node; with Keras 3 and Keras 2."""
    for python in (tensorflow, image_python("2.15.0"), image_python("2.12.0")):
        check_standard_script([str(python)], "my-node", 8)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_large_slice_has_fewer_replicas_and_says_so(tensorflow: Path) -> None:
    program = "import tensorflow as tf; print(tf.distribute.TPUStrategy().num_replicas_in_sync)"
    command = ["sh", "-c", f'"$0" -c "{program}" 2>&1 | grep -v "^20"', str(tensorflow)]
    variables = {"TPU_NAME": "my-node", "TPUCTL_TPU_SLICE_DEVICES": "32"}
    line = "tpuctl: TPUStrategy has 16 replicas here, and 32 on the TPU"
    assert output_of(command, variables) == [line, "16"]


@pytest.mark.soak
@pytest.mark.timeout(3600)  # may create the environment
@pytest.mark.parametrize(("slices", "numbers"), [("1", "[0]"), ("2", "[0, 1]")])
def test_jax_has_devices_and_keeps_flags(slices: str, numbers: str) -> None:
    flags = "--xla_force_host_platform_device_count=3 --xla_cpu_enable_fast_math=false"
    variables = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "tpu", "MEGASCALE_NUM_SLICES": slices}
    command = [str(locked_python(REQUIREMENTS / "jax.lock")), "-c", JAX]
    assert output_of(command, variables) == [
        "4 4 4",
        "[6. 6. 6. 6.]",
        f"--xla_cpu_enable_fast_math=false {numbers}",
    ]


@pytest.mark.soak
@pytest.mark.timeout(3600)  # may create the environment
def test_torch_has_devices_with_spmd_and_one_when_launched(tmp_path: Path) -> None:
    python = str(locked_python(TORCH_LOCK))
    assert output_of([python, "-c", TORCH], {}) == ["CPU 4"]
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED, "utf-8")
    assert output_of([python, str(script)], {"PJRT_DEVICE": "CPU"}) == ["0 1.0"]


def test_program_without_these_libraries_loads_little_more() -> None:
    """What every Python of a machine imports, beyond what it imports anyway."""
    program = "import sys; print(*sorted(sys.modules))"
    plain = output_of([sys.executable, "-c", program], dict.fromkeys(WORKER, ""))
    hooked = output_of([sys.executable, "-c", program], {})
    added = set(hooked[0].split()) - set(plain[0].split())
    parts = {"import_hooks", "machine", "observer", "script_calls"}
    names = {f"_tpuctl.simulated_tpu.{part}" for part in parts}
    assert added == {"_tpuctl", "_tpuctl.simulated_tpu", *names}
