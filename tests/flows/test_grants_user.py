"""The permissions documented for `up` and `down` are necessary and sufficient.

A user gets a custom role with exactly the permissions that the plan checks. Then one of them is
removed, and its check too: some request must be denied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers import OWNER, Member, grant, make_role
from tests.support.grants import ANN, KINDS, Bench, needed_by, was_refused
from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.errors import Denied, TpuctlError
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, LogChunk, Outcome, StepFinished

SAMPLE = 3  # permissions that are removed in the suite; `make soak` removes each one
# Without it every API is assumed to be disabled, and is enabled again.
OPTIONAL = {"serviceusage.services.list"}


async def needed_of(cloud: LocalCloud, folder: Path, kind: str) -> list[str]:
    permissions = await Bench(cloud, folder, kind).needed()
    assert len(permissions) > 30
    return permissions


@pytest.fixture
def as_ann(project: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the commands as Ann, who has no roles."""

    def switch_caller() -> None:
        monkeypatch.setenv("TPUCTL_LOCAL_CALLER", ANN)

    return switch_caller


@pytest.mark.parametrize("kind", KINDS)
async def test_requested_permissions_are_sufficient(
    null_cloud: LocalCloud, tmp_path: Path, as_ann: Any, kind: str
) -> None:
    bench = Bench(null_cloud, tmp_path, kind)
    names = await bench.needed()
    as_ann()
    bench.let(names)
    await bench.work()


async def test_permissions_are_sufficient_for_job_on_real_machine(
    make_stack: Callable[..., Tpuctl],
    local_cloud: LocalCloud,
    events: list[Event],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/v1/projects/local-project/services:batchEnable"
    apis = {"serviceIds": ["iam.googleapis.com"]}
    Member.owner(local_cloud).send_ok("POST", path, json=apis)
    names = await needed_by(make_stack(name="typed-by-ann"))
    role = make_role(local_cloud, "stacks", names)
    grant(local_cloud, "projects/local-project", role, ANN)
    monkeypatch.setenv("TPUCTL_LOCAL_CALLER", ANN)
    stack = make_stack(name="typed-by-ann")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.py").write_text("print('finished')", "utf-8")
    since = remote_control.calls(local_cloud)[-1]["number"]
    await stack.up()
    record = await stack.submit(tmp_path / "job" / "job.py", [])
    assert await stack.follow(record) == 0
    assert any(isinstance(event, LogChunk) and b"finished" in event.data for event in events)
    assert (await stack.down()).leaks == ()
    callers = {call["caller"] for call in remote_control.calls(local_cloud, since)}
    assert {"ann@example.com", stack.stack.service_account} <= callers
    assert OWNER not in callers


async def test_missing_permission_is_reported_before_creation(
    null_cloud: LocalCloud, tmp_path: Path, as_ann: Any
) -> None:
    bench = Bench(null_cloud, tmp_path, "vm")
    names, missing = await bench.needed(), {"storage.objects.delete", "tpu.nodes.delete"}
    as_ann()
    bench.let([name for name in names if name not in missing])
    since = remote_control.calls(null_cloud)[-1]["number"]
    with pytest.raises(Denied) as caught:
        await bench.open().plan()
    assert "Permissions missing" in str(caught.value)
    assert all(name in str(caught.value) for name in missing)
    changed = [
        call["method"] for call in remote_control.calls(null_cloud, since) if call["mutating"]
    ]
    assert changed == []


async def check_permission_is_required(
    cloud: LocalCloud, folder: Path, kind: str, names: Sequence[str], missing: str
) -> None:
    """Run without one permission, and without the permission check."""
    bench = Bench(cloud, folder, kind)
    bench.let([name for name in names if name != missing])
    # Operations are polled only if they take a while.
    remote_control.change_settings(cloud, pace="quick" if "perations.get" in missing else "instant")
    since = remote_control.calls(cloud)[-1]["number"]
    try:
        await bench.work()
    except TpuctlError as error:
        message = str(error)
        assert missing in message or was_refused(cloud, since, missing, message), (
            kind,
            missing,
            message,
        )
    else:
        assert missing in OPTIONAL, f"{kind} does not need {missing}"
    finally:
        remote_control.change_settings(cloud, pace="instant")


async def test_sampled_permissions_are_required(
    null_cloud: LocalCloud, tmp_path: Path, as_ann: Any, no_permission_check: None
) -> None:
    names = await needed_of(null_cloud, tmp_path, "vm")
    as_ann()
    for missing in random.sample(
        [permission for permission in names if "perations.get" not in permission], SAMPLE
    ):
        await check_permission_is_required(null_cloud, tmp_path, "vm", names, missing)


async def test_disk_deletion_does_not_wait_for_undeletable_machine(
    null_cloud: LocalCloud,
    tmp_path: Path,
    as_ann: Any,
    no_permission_check: None,
    events: list[Event],
) -> None:
    bench = Bench(null_cloud, tmp_path, "node")
    bench.let([name for name in await bench.needed() if name != "compute.instances.delete"])
    as_ann()
    stack = bench.open()
    await stack.provision(await stack.plan())
    with pytest.raises(Denied):
        await Tpuctl(bench.file, cloud="local", emit=events.append).down()
    ended = {event.address: event.outcome for event in events if isinstance(event, StepFinished)}
    machine = stack.stack.names.controller
    assert ended[f"controller/{machine}"] is Outcome.FAILED
    assert ended[f"disk/{stack.stack.zone}/{machine}"] is Outcome.SKIPPED


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
async def test_every_permission_is_required(
    null_cloud: LocalCloud, tmp_path: Path, as_ann: Any, no_permission_check: None, kind: str
) -> None:
    names = await needed_of(null_cloud, tmp_path, kind)
    vm_permissions = [] if kind == "vm" else await needed_of(null_cloud, tmp_path, "vm")
    as_ann()
    for missing in names:
        if missing not in vm_permissions:
            await check_permission_is_required(null_cloud, tmp_path, kind, names, missing)
