"""The shell scripts that `up` is compared with create the same stack in a legal order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.benchmarks.figures import stack_in
from tests.benchmarks.scripts import ExistingStack, script_of
from tests.benchmarks.ups import KINDS
from tests.support.projects import serving

KIND = "TPU VM, disk, controller"  # it has both custom roles, and its account acts as itself


def test_script_creates_granted_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "cloud"
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(home))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    with serving(home) as cloud:
        stack = stack_in(tmp_path, **KINDS[KIND])

        async def provision() -> None:
            await stack.provision(await stack.plan())

        asyncio.run(provision())
        existing = ExistingStack(cloud, stack)
        steps, rights = script_of(KIND, existing), existing.rights()

    creators = {
        f"projects/{existing.project}/roles/{step.command[4]}": step.name
        for step in steps
        if step.command[1:4] == ["iam", "roles", "create"]
    }
    names = stack.stack.names
    assert set(creators) == {names.watchdog_role, names.recovery_role}
    over: dict[str, set[str]] = {}  # by step, the steps that finish before it starts
    granted = []
    for step in steps:
        assert over.keys() >= {*step.after}, f"{step.name} comes before what it follows"
        over[step.name] = {*step.after}.union(*(over[name] for name in step.after))
        if "add-iam-policy-binding" in step.command:
            role = step.command[-1].removeprefix("--role=")
            granted.append(role)
            assert role not in creators or creators[role] in over[step.name], step.name
    assert sorted(granted) == sorted(rights["project"] + rights["bucket"] + rights["account"])
    assert rights["account"] == ["roles/iam.serviceAccountUser"]
