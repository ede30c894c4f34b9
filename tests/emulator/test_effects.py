"""Every effect has a pace, and unexpected exceptions are reported as local cloud bugs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.cloud import compute_v1
from google.cloud.tpu_v2 import Node

import tpuctl.emulator
from tests.support.locations import PARENT
from tpuctl.cloud.errors import convert, from_status
from tpuctl.emulator.compute.core.collection import Collection
from tpuctl.emulator.server import APIS, PACES
from tpuctl.emulator.state.operations import Effect
from tpuctl.errors import OperationFailed
from tpuctl.local_cloud.pace import Pace

SOURCES = Path(tpuctl.emulator.__file__).parent
# Effects whose pace has another name.
STEPS: Mapping[str, str] = {
    "compute.projects.setMetadata": "compute.metadata",
    "projects.change": "projects.delete",
    "services.batchEnable": "services.enable",
    "tpu.queued.delete": "tpu.nodes.delete",
    "tpu_v1.maintain": "tpu.maintain",
    "tpu_v1.nodes.create": "tpu.v1.create",
    "tpu_v1.nodes.delete": "tpu.v1.delete",
    "tpu_v1.nodes.reimage": "tpu.v1.reimage",
    "tpu_v1.nodes.start": "tpu.v1.start",
    "tpu_v1.nodes.stop": "tpu.v1.stop",
    "tpu_v1.preempt": "tpu.preempt",
}
DRIVES = "tpu.queued.drive"  # a state machine whose states have their own paces


def place_of(effect: Effect) -> str:
    """Where an effect is implemented: file, line and function."""
    function = inspect.unwrap(effect.finish)
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno} {function.__qualname__}"


async def test_every_effect_has_pace(cloud: Any) -> None:
    pace, without, names = Pace("quick", PACES), [], set()
    for service in (key for service_api in APIS for key in service_api.services):
        for name, effect in cloud.server.registry.service(service).effects.items():
            names.add(name)
            if name == DRIVES:
                continue
            try:
                pace.seconds(STEPS.get(name, name))
            except LookupError as error:
                without.append(f"{name} ({place_of(effect)}): {error}")
    assert not without, "\n".join(without)
    assert {*STEPS, DRIVES} <= names, "these effects no longer exist"


async def test_every_compute_operation_has_effect(cloud: Any) -> None:
    service = cloud.server.registry.service("compute")
    begun = {
        (f"{collection.kind}.{verb}", kind)
        for collection in service.handlers.values()
        if isinstance(collection, Collection)
        for kind in type(collection).__mro__[:-1]
        for verb in re.findall(r'self\.(?:begin|_change)\(\s*"(\w+)"', inspect.getsource(kind))
    }
    assert len(begun) > 20, "the search no longer finds them"
    without = [
        f"{name}: add an Effect to `effects` of {kind.__name__} in {kind.__module__}"
        for name, kind in begun
        if name not in service.effects
    ]
    assert not without, "\n".join(without)


def steps_in(source: Path) -> Iterator[tuple[int, str]]:
    """The steps in a file: arguments of `pace.seconds` and `_deadline`, and `step=`."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", "")
        values = [keyword.value for keyword in node.keywords if keyword.arg == "step"]
        values += node.args if name in ("seconds", "_deadline") else []
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.lineno, value.value


def test_every_step_has_pace() -> None:
    pace, count = Pace("real", PACES), 0
    for source in SOURCES.rglob("*.py"):
        for line, step in steps_in(source):
            count += 1
            try:
                pace.seconds(step)
            except LookupError as error:
                pytest.fail(f"{source}:{line}: {error}")
    assert count > 10, "the search no longer finds them"


def test_missing_pace_names_step() -> None:
    with pytest.raises(LookupError, match=r"no pace for 'compute\.balloons\.insert'.*pace"):
        Pace("instant", PACES).seconds("compute.balloons.insert")


def breaks(*arguments: Any, **more: Any) -> None:
    raise KeyError("compute.snapshots")


async def breaks_at_work(*arguments: Any) -> None:
    breaks()


async def test_local_cloud_bug_is_not_blamed_on_google(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In HTTP and gRPC responses, in Compute's legacy form, and in a failed operation."""
    registry = cloud.server.registry
    node = Node(accelerator_type="v2-8", runtime_version="tpu-ubuntu2204-base")
    create = {"parent": PARENT, "node_id": "n", "node": node}

    # An exception that fails the operation.
    effects = registry.service("tpu").effects
    monkeypatch.setitem(effects, "tpu.nodes.create", Effect(breaks, breaks_at_work))
    operation = await asyncio.to_thread(cloud.tpu().create_node, create)
    ended = await registry.operations.wait(operation.operation.name, 60)
    check(from_status(registry.operations.message(ended).error, "node/n"))

    # An exception while beginning it.
    monkeypatch.setattr(registry.operations, "begin", breaks)
    create["node_id"] = "m"
    for transport in ("grpc", "rest"):
        with pytest.raises(api.InternalServerError) as raised:
            await asyncio.to_thread(cloud.tpu(transport).create_node, create)
        check(convert(raised.value, "node/n"))
    disks = cloud.client(compute_v1.DisksClient)
    location = {"project": "local-project", "zone": "europe-west4-a"}
    disk = {**location, "disk_resource": {"name": "d", "size_gb": 10}}
    with pytest.raises(api.InternalServerError) as raised:
        await asyncio.to_thread(disks.insert_unary, disk)
    check(convert(raised.value, "disk/d"))


def check(error: Exception) -> None:
    """Not retried (not Transient); says that it is a bug and what to do."""
    assert isinstance(error, OperationFailed)
    (diagnostic,) = error.diagnostics
    assert diagnostic.summary == "Bug in the local cloud"
    assert "KeyError('compute.snapshots')" in diagnostic.detail
    assert "tpuctl local status" in diagnostic.hint
