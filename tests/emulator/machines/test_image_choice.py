"""The Python and TensorFlow of a machine's image, and the note about a substitute."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.prerequisites import (
    empty_image_cache,
    hide_interpreters,
    other_interpreter,
)
from tpuctl.emulator.machines.interface import MachineError
from tpuctl.interpreters import current
from tpuctl.local_cloud.machine_images import ImageStore, NoImage

RUNTIME, TENSORFLOW = "tpu-vm-tf-2.15.1-pjrt", "2.15.1"
NOWHERE = "3.99"

MakeStore = Callable[..., ImageStore]


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """A store of images without packages that require these Pythons: {"2.15.1": "3.11"}."""

    def make(pythons: dict[str, str]) -> ImageStore:
        folder = tmp_path / "locks"
        folder.mkdir(exist_ok=True)
        for version, minors in pythons.items():
            folder.joinpath(f"{version}.txt").write_text(f"# interpreters: {minors}\n")
        return ImageStore(empty_image_cache(), folder)

    return make


def test_current_python_is_preferred(make_store: MakeStore) -> None:
    store = make_store({TENSORFLOW: f"{NOWHERE} {current().minor}"})
    assert store.choose(TENSORFLOW).tensorflow == TENSORFLOW
    assert store.choose(TENSORFLOW).note == ""
    assert f"-py{current().minor}-" in store.path_of(TENSORFLOW).name


@pytest.mark.parametrize(
    ("others", "requested", "nearest"),
    [
        (["3.13"], "3.10", None),
        (["3.9"], "3.8", "3.9"),
        (["3.8", "3.9"], "3.10", None),
        (["3.10", "3.13"], "3.10", "3.10"),
        (["3.9"], "3.14", None),
    ],
)
def test_nearest_python_is_substituted(
    others: list[str],
    requested: str,
    nearest: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newer before older; None is the running one."""
    if current().minor in (*others, requested):
        pytest.skip("the running Python is one of these")
    hide_interpreters(tmp_path, monkeypatch)
    for minor in others:
        answer = [f"/opt/python{minor}", f"{minor}.1", "CPython", False, platform.machine()]
        stand_in = tmp_path / "PATH" / f"python{minor}"
        stand_in.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
        stand_in.chmod(0o755)
    store = ImageStore(tmp_path / "images")
    choice = store.choose(None, requested)
    actual = nearest or current().minor
    assert choice.python == actual
    assert f"python-py{actual}-" in store.path_of(None, actual).name
    if actual == requested:
        assert choice.note == ""
    else:
        assert choice.note == (
            f"Python {actual} instead of {requested}: no Python {requested} was found on PATH, "
            "in pyenv or in uv."
        )


def test_tensorflow_image_prefers_python_of_runtime(make_store: MakeStore) -> None:
    other = other_interpreter()
    store = make_store({TENSORFLOW: f"{current().minor} {other.minor}"})
    choice = store.choose(TENSORFLOW, other.minor)
    assert (choice.python, choice.note) == (other.minor, "")
    assert f"-py{other.minor}-" in store.path_of(TENSORFLOW, choice.python).name
    choice = store.choose(TENSORFLOW, NOWHERE)
    assert choice.python == current().minor
    assert choice.note == (
        f"Python {current().minor} instead of {NOWHERE}: the images with TensorFlow {TENSORFLOW} "
        f"are for Python {current().minor} or {other.minor}."
    )


@pytest.mark.parametrize(
    ("offered", "requested", "nearest"),
    [
        (["2.12.0", "2.16.1", "2.18.0"], "2.15.1", "2.16.1"),
        (["2.12.0", "2.16.1", "2.18.0"], "2.12.1", "2.12.0"),
        (["2.20.0", "2.21.0"], "2.18.0", "2.20.0"),
        (["2.16.0", "2.18.0"], "2.17.0", "2.18.0"),
    ],
)
def test_nearest_tensorflow_is_substituted(
    make_store: MakeStore, offered: list[str], requested: str, nearest: str
) -> None:
    store = make_store(dict.fromkeys(offered, current().minor) | {requested: f"3.98 {NOWHERE}"})
    choice = store.choose(requested)
    assert choice.tensorflow == nearest
    assert choice.note.startswith(f"TensorFlow {nearest} instead of {requested}: no Python 3.98 or")
    assert "\n" not in choice.note
    assert list(store.available()) == offered


def test_error_names_python_to_install(make_store: MakeStore) -> None:
    store = make_store({"2.15.1": "3.98", "2.18.0": f"3.98 {NOWHERE}"})
    with pytest.raises(NoImage, match=r"2\.18\.0 needs Python 3\.98 or 3\.99\.") as refused:
        store.choose("2.18.0")
    assert f"This is Python {current().minor}" in str(refused.value)
    assert "uv python install 3.98" in refused.value.hint


async def test_existing_image_is_reused_under_another_path(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_interpreter()
    store = make_store({TENSORFLOW: other.minor})
    image = await store.ensure(TENSORFLOW, lambda _: None)
    hide_interpreters(tmp_path, monkeypatch)
    assert store.choose(TENSORFLOW).tensorflow == TENSORFLOW
    assert store.path_of(TENSORFLOW) == image
    assert ImageStore(tmp_path / "none", tmp_path / "locks").available() == {}


async def test_machine_runs_different_python(make_lab: Any, make_store: MakeStore) -> None:
    other = other_interpreter()
    lab = await make_lab(images=make_store({TENSORFLOW: other.minor}))
    await lab.boot(runtime=RUNTIME)
    done = await lab.run("python3 -c 'import sys; print(*sys.version_info[:3], sep=\".\")'")
    assert (done.out.strip(), done.error) == (other.version, "")
    done = await lab.run("pip --version && python3 -m venv --without-pip it && it/bin/python -V")
    assert (done.status, done.error) == (0, "")
    assert f"(python {other.minor})" in done.out
    assert done.out.split()[-2:] == ["Python", other.version]
    note = f"Python {other.minor} instead of 3.10: the images with TensorFlow {TENSORFLOW} are for "
    notes = [] if other.minor == "3.10" else [f"{note}Python {other.minor}."]
    assert lab.host.image_notes == notes
    assert (await lab.run("echo $TPUCTL_MACHINE_NOTE")).out == f"{''.join(notes)}\n"


async def test_boot_fails_without_suitable_python(make_lab: Any, make_store: MakeStore) -> None:
    lab = await make_lab(images=make_store({TENSORFLOW: NOWHERE}))
    with pytest.raises(MachineError, match=rf"TensorFlow 2\.15\.1 needs Python {NOWHERE}"):
        await lab.boot(runtime=RUNTIME)
    assert lab.host.count_running() == 0
