"""OS Login: where it is on, whose user logs in, and where tpuctl's files are on a machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.stacks import bert_stack
from tpuctl.errors import Conflict
from tpuctl.flows.machines.os_login import _user_of
from tpuctl.model.text.os_login import os_login_in
from tpuctl.remote.ssh import _other_owner
from tpuctl.resources.access.custom_roles import OS_LOGIN, recovery_permissions
from tpuctl.resources.composition import tpu_kinds


@pytest.mark.parametrize(
    ("metadata", "is_on"),
    [({}, None), ({"enable-oslogin": "TRUE"}, True), ({"enable-oslogin": "false"}, False)],
)
def test_metadata_decides(metadata: dict[str, str], is_on: bool | None) -> None:
    assert os_login_in(metadata) is is_on


def test_all_alternatives_get_it(tmp_path: Path) -> None:
    text = "bucket: {allow_egress: true}\ncontroller: {}\ntpu: {any_of: [v5e-8, v6e-8]}\n"
    stack = bert_stack(tmp_path, text)
    for place in stack.candidates:
        before, after = stack.at(place), stack.with_os_login().at(place)
        assert (before.has_os_login, after.has_os_login) == (False, True)
        needed = {*recovery_permissions(after, tpu_kinds(after))}
        assert needed - {*recovery_permissions(before, tpu_kinds(before))} == {*OS_LOGIN}


def test_user_is_of_the_primary_account() -> None:
    accounts = [{"username": "first"}, {"username": "second", "primary": True}]
    assert _user_of({"posixAccounts": accounts}, "ann@example.com") == "second"
    assert _user_of({"posixAccounts": accounts[:1]}, "ann@example.com") == "first"
    with pytest.raises(Conflict, match="no POSIX account"):
        _user_of({}, "ann@example.com")


@pytest.mark.parametrize(
    ("output", "owner"),
    [
        ("", ""),  # a machine without our files, or a user without sudo
        ("17 ann/.tpuctl\n", ""),
        ("18 ann/.tpuctl\n17 sa_123/.tpuctl\n", "sa_123"),
        ("0 root/.tpuctl\n5 ann/.tpuctl\n", ""),
        ("1 -u/.tpuctl\n2 a b/.tpuctl\nx\n", ""),
    ],
)
async def test_owner_is_the_first_who_came(output: str, owner: str) -> None:
    async def run(line: str, **_: Any) -> Any:
        return SimpleNamespace(stdout=output)

    connection: Any = SimpleNamespace(run=run)
    assert await _other_owner(connection, "ann") == owner
