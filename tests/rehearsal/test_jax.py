"""Scripts with JAX, observed from inside: what its traces and calls show exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.conftest import Rehearsed
from tests.support.locked_environment import locked_python
from tpuctl.preflight.rehearsal.observations import (
    Compiled,
    Configured,
    Diverged,
    Ended,
    Fetched,
    Postponed,
    SameKey,
)

pytestmark = pytest.mark.timeout(900)  # may create the environment

JAX_LOCK = Path(__file__).resolve().parents[2] / "requirements" / "jax.lock"


@pytest.fixture
def run(rehearse: Callable[..., Rehearsed]) -> Callable[..., Rehearsed]:
    def run(*arguments: str, script: str = "random_jax.py", **settings: Any) -> Rehearsed:
        options = {"python": locked_python(JAX_LOCK), "modules": ("jax.numpy",)}
        environment = {"JAX_PLATFORMS": "cpu"}
        return rehearse(script, *arguments, environment=environment, **options, **settings)

    return run


@pytest.mark.parametrize(
    ("case", "is_same"),
    [
        *(("same", True), ("constant", True)),
        *(("folded", False), ("new", False), ("unused", False)),
    ],
)
def test_same_random_numbers_of_all_steps_are_seen(
    run: Callable[..., Rehearsed], case: str, is_same: bool
) -> None:
    rehearsed = run(case)
    assert bool(rehearsed.all(SameKey)) is is_same, rehearsed.output


def test_constants_and_waits_are_seen(run: Callable[..., Rehearsed]) -> None:
    rehearsed = run("new")
    step = next(each for each in rehearsed.all(Compiled) if each.function == "train_step")
    assert 2100 * 2100 * 4 <= step.constants < 2 * 2100 * 2100 * 4
    waits = [each for each in rehearsed.all(Fetched) if each.where is not None]
    assert {each.where.line for each in waits if each.where} == {
        rehearsed.line("block_until_ready")
    }
    assert {each.after_step for each in waits} >= {1, 2, 3}


def test_donated_array_that_is_read_fails_at_its_line(run: Callable[..., Rehearsed]) -> None:
    ended = run("deleted").only(Ended)
    assert ended.error is not None and ended.error.where is not None
    assert ended.error.message.startswith("Array has been deleted")
    assert ended.error.where.text == "print(before.sum())"
    assert not ended.error.is_tpuctls


@pytest.mark.parametrize(
    ("kind", "case", "differs"),
    [
        *(("pmap", "apart", True), ("pmap", "combined", False), ("pmap", "statistics", False)),
        *(("shard_map", "apart", True), ("shard_map", "combined", False)),
        *(("shard_map", "statistics", False), ("jit", "combined", False)),
    ],
)
def test_copies_of_the_state_that_differ_between_devices_are_seen(
    run: Callable[..., Rehearsed], kind: str, case: str, differs: bool
) -> None:
    rehearsed = run(kind, case, script="copies_jax.py", devices=4)
    assert bool(rehearsed.all(Diverged)) is differs, rehearsed.output
    assert rehearsed.only(Ended).reason == "steps", rehearsed.output


def test_settings_that_slow_steps_down_are_seen(run: Callable[..., Rehearsed]) -> None:
    rehearsed = run(script="settings_jax.py")
    settings = rehearsed.all(Configured)
    assert [(each.setting, each.where and each.where.line) for each in settings] == [
        (name, rehearsed.line(f'"{name}", {value}'))
        for name, value in (
            *(("jax_platforms", '"cpu"'), ("jax_debug_nans", "True"), ("jax_debug_infs", "True")),
            *(("jax_enable_x64", "True"), ("jax_disable_jit", "True")),
        )
    ], rehearsed.output


def test_save_that_is_not_due_is_seen(run: Callable[..., Rehearsed]) -> None:
    rehearsed = run(script="manager_jax.py")
    [postponed] = rehearsed.all(Postponed)
    assert postponed.where is not None, rehearsed.output
    assert postponed.where.line == rehearsed.line("manager.save")
