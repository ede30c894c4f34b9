"""Users without an account, as in containers that run with any user ID: no name, and no home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.required_programs import skip_without
from tpuctl.api import Tpuctl

ACCOUNT = ("USER", "LOGNAME", "LNAME", "USERNAME", "HOME")
UNSHARE = ("unshare", "--user", "--map-user=4242", "--map-group=4242")


async def test_commands_work_for_a_user_without_an_account(
    make_stack: Callable[..., Tpuctl],
) -> None:
    skip_without("unshare")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    stack = make_stack()
    folder = stack.stack_file.parent
    (folder / "train.py").write_text("print('trained')\n", "utf-8")
    variables = {name: value for name, value in os.environ.items() if name not in ACCOUNT}

    def tpuctl(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*UNSHARE, sys.executable, "-m", "tpuctl", "--cloud", "local", *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Internal error" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    await stack.up()
    code, out, error = tpuctl("run", "train.py")
    assert (code, "trained" in out) == (0, True), error
    code, out, error = tpuctl("ssh", "--", "echo", "in the machine")
    assert (code, "in the machine" in out) == (0, True), error
    code, _, error = tpuctl("ssh")
    assert (code, "User has no account" in error) == (2, True)
    assert (await stack.jobs())[0].record.submitted_by.startswith("tpuctl@")
