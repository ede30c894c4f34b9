"""Building, caching and choosing images."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine_specs import worker_spec
from tpuctl.catalog import runtimes
from tpuctl.emulator.machines.interface import MachineError
from tpuctl.local_cloud.cache import cache_items
from tpuctl.local_cloud.machine_images import MARKER, ImageStore
from tpuctl.local_cloud.pip_configuration import UV_VARIABLES

NODE = "projects/lab/locations/z/nodes/bert"


SUBSTITUTE = "2.20.0"  # no runtime has it: the oldest TensorFlow for Python 3.13


def test_locks_have_runtime_and_hashes(tmp_path: Path) -> None:
    locks = ImageStore(tmp_path).locks()
    assert set(locks) - {SUBSTITUTE} <= {runtime.tensorflow for runtime in runtimes()}
    assert {"2.18.0", SUBSTITUTE} <= set(locks)
    for version, lock in locks.items():
        text = lock.read_text()
        pins = re.findall(r"^([a-z0-9_.-]+)==(\S+)", text, re.MULTILINE | re.IGNORECASE)
        assert ("tensorflow-cpu", version) in pins
        assert "://" not in text
        blocks = re.split(r"\n(?=[a-zA-Z])", text.partition("\n")[2])
        assert all("--hash=sha256:" in block for block in blocks)


async def test_concurrent_requests_build_image_once(tmp_path: Path) -> None:
    messages: list[str] = []
    stores = [ImageStore(tmp_path) for _ in range(3)]
    images = await asyncio.gather(*(store.ensure(None, messages.append) for store in stores))
    assert len(set(images)) == 1
    assert len([line for line in messages if line.startswith("Building")]) == 1
    python = await asyncio.create_subprocess_exec(
        images[0] / "bin" / "python3", "-m", "pip", "-V", stdout=asyncio.subprocess.DEVNULL
    )
    assert await python.wait() == 0


@pytest.mark.soak
async def test_interrupted_build_is_repeated(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    image = store.path_of(None)
    (image / "bin").mkdir(parents=True)
    (image / "bin" / "python3").write_text("half of it")
    assert not store.is_cached(None)
    await store.ensure(None, lambda _: None)
    assert (image / MARKER).exists()
    assert (image / "bin" / "python3").read_bytes() != b"half of it"


async def test_canceled_build_leaves_no_image(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    started = asyncio.Event()
    making = asyncio.create_task(store.ensure(None, lambda _: started.set()))
    await started.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert not store.is_cached(None)


@pytest.mark.soak
async def test_build_error_includes_pip_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "pip.conf"
    empty.write_text("")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # disables pip's configuration files
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    store = ImageStore(tmp_path / "cache")
    with pytest.raises(
        MachineError, match=r"Failed to build the image with TensorFlow 2\.18\.0"
    ) as failure:
        await store.ensure("2.18.0", lambda _: None)
    assert "No matching distribution" in str(failure.value)
    assert not store.is_cached("2.18.0")


@pytest.mark.soak
async def test_node_deleted_during_image_build_does_not_boot(make_lab: Any, tmp_path: Path) -> None:
    lab = await make_lab(images=ImageStore(tmp_path / "fresh"))
    [name] = names = [f"{NODE}/workers/0"]
    [endpoint] = await lab.host.reserve(names)
    build_started = asyncio.Event()
    spec = worker_spec(endpoint, zone="z")
    booting = asyncio.create_task(lab.host.boot(spec, lambda _: build_started.set()))
    await build_started.wait()
    await lab.host.discard(name)
    with pytest.raises(MachineError, match="shut down while it started"):
        await booting
    assert lab.host.count_running() == 0


@pytest.mark.parametrize(
    ("runtime", "text"),
    [
        ("tpu-vm-tf-2.17.0-pjrt", "instead of 2.17.0"),
        ("tpu-vm-tf-9.9.9-nothing", "TensorFlow 2.20.0 instead of 9.9.9"),
        ("v2-nightly-tpu", "Plain Python: the runtime v2-nightly-tpu is not known here."),
        ("v2-tpuv5-litepod", ""),
    ],
)
async def test_runtime_without_image_of_its_own_boots_another(
    lab: Any, runtime: str, text: str
) -> None:
    spec = worker_spec((await lab.host.reserve([f"{NODE}/workers/0"]))[0], zone="z")
    choice = lab.host._choose(replace(spec, runtime_version=runtime))
    assert text in choice.note
    assert bool(choice.note) == bool(text)


async def test_error_names_invalid_runtime(lab: Any) -> None:
    with pytest.raises(MachineError, match=r"TPU VM.*TensorFlow 2\.18\.0"):
        await lab.boot(runtime="TPU VM")
    assert lab.host.count_running() == 0


async def test_image_of_running_machine_is_not_pruned(lab: Any, images: ImageStore) -> None:
    """Whatever local cloud has the machine: here it is not the user's own."""
    path = images.path_of(None, images.choose(None, "3.10").python)
    elsewhere = lab.home / "elsewhere"
    await lab.boot()
    reasons = {item.path: item.keep_reason for item in cache_items(elsewhere)}
    assert reasons[path] == "in use"


def test_cache_folder_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(tmp_path / "elsewhere"))
    assert ImageStore().cache == tmp_path / "elsewhere"


async def test_machine_has_hosts_settings_of_indexes(
    make_lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_PYTHON_INSTALL_MIRROR": "https://mirror.example/pythons",
    }
    for name in UV_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**settings, "UV_PROJECT": "/home/anna"}.items():
        monkeypatch.setenv(name, value)
    lab = await make_lab()
    await lab.boot()
    done = await lab.run("env | grep ^UV_ | grep -v ^UV_CACHE_DIR= | sort")
    assert done.out.splitlines() == [f"{name}={value}" for name, value in settings.items()]
