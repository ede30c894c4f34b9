"""Who uses a stack, and from where: other folders, and users without an account (no name and no
home, as in containers that run with any user ID)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.required_programs import skip_without
from tests.support.subprocesses import run_captured
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, Note
from tpuctl.model.stack.stack_folder import other_folder

ACCOUNT = ("USER", "LOGNAME", "LNAME", "USERNAME", "HOME")
UNSHARE = ("unshare", "--user", "--map-user=4242", "--map-group=4242")


async def test_stack_of_another_folder_is_reported(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders of one computer whose stack files name the same stack."""
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    first = make_stack()
    events: list[Event] = []
    folder = tmp_path / "second"
    folder.mkdir()
    shutil.copy(first.stack_file, folder)
    second = Tpuctl(folder / "tpuctl.yaml", cloud="local", emit=events.append)
    (folder / "train.py").write_text("", "utf-8")

    def notes() -> list[str]:
        texts = [event.text for event in events if isinstance(event, Note)]
        events.clear()
        return [text for text in texts if f"from {first.stack_file.parent}, not" in text]

    await first.up()
    monkeypatch.chdir(folder)
    await second.start(second.submission("train.py"))
    assert len(notes()) == 1
    with Terminal(folder, "--cloud", "local", "down") as terminal:
        terminal.wait_for("Delete these resources, brought up from")
        terminal.type("n\n")
        assert terminal.end() == 130
    bare = Tpuctl(name=first.stack.name, project=first.stack.project, cloud="local")
    bare.emit = events.append
    with pytest.raises(KeyboardInterrupt):
        await bare.down(confirm=interrupt)
    assert not notes(), "the name was typed"
    await second.up()
    assert len(notes()) == 1
    await second.up()
    assert not notes(), "now it is this folder's"
    await second.down()
    assert other_folder(first.stack, "local") is None, "it no longer exists"


def interrupt(teardown: object) -> None:
    raise KeyboardInterrupt


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
        done = run_captured(
            [*UNSHARE, sys.executable, "-m", "tpuctl", "--cloud", "local", *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            timeout=120,
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
