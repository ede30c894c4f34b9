"""Hosts in ssh's configuration: ssh, scp, sftp, rsync, and git of the user reach the machines."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.required_programs import skip_without
from tests.support.subprocesses import run_captured
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.remote.openssh import HostsFile

USER_CONFIGURATION = """\
# Mine.
Host *
    User someone-else
    HostName %h.example.com
    ProxyCommand false
"""


@dataclass(frozen=True)
class Computer:
    """A user's home, and a folder with the stack file."""

    home: Path
    folder: Path

    @property
    def configuration(self) -> Path:
        return self.home / ".ssh" / "config"

    def tpuctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_tpuctl(*arguments, folder=self.folder, HOME=str(self.home))

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A program that reads ssh's configuration, which ssh looks up without HOME.

        Its environment has none of the settings of tpuctl.
        """
        program, *rest = command
        ssh = f"ssh -F '{self.configuration}'"
        if program in ("ssh", "scp", "sftp"):
            rest = ["-F", str(self.configuration), *rest]
        elif program == "rsync":
            rest = ["-e", ssh, *rest]
        variables = {name: value for name, value in os.environ.items() if name[:6] != "TPUCTL"}
        done = run_captured(
            [program, *rest],
            cwd=self.home,
            env={**variables, "GIT_SSH_COMMAND": ssh},
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        return done


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    computer = Computer(tmp_path / "my home", tmp_path / "my stack")
    computer.folder.mkdir()
    computer.configuration.parent.mkdir(parents=True)
    computer.configuration.write_text(USER_CONFIGURATION, "utf-8")
    return computer


async def bring_up(stack: Tpuctl, computer: Computer) -> str:
    """The stack's name, after `up`; its file is copied to the user's folder."""
    await stack.up()
    shutil.copy(stack.stack_file, computer.folder / "tpuctl.yaml")
    return stack.stack.name


@pytest.mark.parametrize("network", ["external", pytest.param("iap", marks=pytest.mark.soak)])
async def test_programs_reach_hosts_that_stay_valid_after_recreation(
    network: str, make_stack: Callable[..., Tpuctl], computer: Computer
) -> None:
    skip_without("ssh", "scp", "sftp", "git")
    stack = make_stack(extra=f"network: {{ssh: {network}}}\ncontroller: {{}}\n")
    name = await bring_up(stack, computer)

    def use() -> None:
        refused = computer.tpuctl("ssh-config")
        assert (refused.returncode, "Pass --yes" in refused.stderr) == (2, True)
        printed = computer.tpuctl("ssh-config", "--print").stdout
        key = '{"private_key": "MIISECRET"}'  # instead of its path, which the hosts would contain
        done = run_tpuctl(
            *("ssh-config", "--print"),
            folder=computer.folder,
            HOME=str(computer.home),
            GOOGLE_APPLICATION_CREDENTIALS=key,
        )
        assert done.stdout == printed
        with Terminal(
            computer.folder, "ssh-config", environment={**os.environ, "HOME": str(computer.home)}
        ) as terminal:
            terminal.wait_for("[Y/n]")
            terminal.type("n\n")
            assert terminal.end() == 130
        assert computer.configuration.read_text("utf-8") == USER_CONFIGURATION
        assert not HostsFile(name, "local-project", "local").path.exists()
        done = computer.tpuctl("ssh-config", "--yes")
        assert HostsFile(name, "local-project", "local").path.read_text("utf-8") == printed
        assert done.returncode == 0, done.stderr
        assert f"ssh knows {name}-0, {name}-controller." in done.stdout
        again = computer.tpuctl("ssh-config")
        assert again.returncode == 0, "the second time there is nothing to ask"
        node = asyncio.run(stack.node())
        assert computer.run("ssh", f"{name}-0", "hostname").stdout.strip().endswith("-w-0")
        controller = computer.run("ssh", f"{name}-controller", "hostname").stdout.strip()
        assert controller == stack.stack.names.controller
        assert computer.run("ssh", f"{name}-0", "exit 9", code=9)

        content = os.urandom(3_000_000)
        (computer.home / "sent").write_bytes(content)
        computer.run("scp", "sent", f"{name}-0:there")
        computer.run("scp", f"{name}-0:there", "back")
        assert (computer.home / "back").read_bytes() == content
        (computer.home / "batch").write_text("get there by-sftp\n", "utf-8")
        computer.run("sftp", "-b", "batch", f"{name}-0")
        assert (computer.home / "by-sftp").read_bytes() == content

        (computer.home / "tree" / "a b").mkdir(parents=True)
        (computer.home / "tree" / "a b" / "file").write_text("1", "utf-8")
        if shutil.which("rsync"):
            computer.run("rsync", "-a", "--delete", "tree/", f"{name}-0:tree/")
            (computer.home / "tree" / "a b" / "file").unlink()
            (computer.home / "tree" / "second").write_text("2", "utf-8")
            computer.run("rsync", "-a", "--delete", "tree/", f"{name}-0:tree/")
            listed = computer.run("ssh", f"{name}-0", "find tree -type f").stdout
            assert listed == "tree/second\n"

        computer.run("ssh", f"{name}-0", "git init -q --bare repository.git")
        computer.run("git", "clone", "-q", f"{name}-0:repository.git", "clone")
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        computer.run("git", "-C", "clone", *identity, "commit", "-q", "--allow-empty", "-m", "One")
        computer.run("git", "-C", "clone", "push", "-q", "origin", "HEAD:main")
        log = computer.run("ssh", f"{name}-0", "git -C repository.git log --format=%s main")
        assert log.stdout == "One\n"

        # Google takes the node away; the next one has another address and host key.
        client = stack.cloud.client("tpu")
        path = f"projects/{stack.stack.project}/locations/{node.zone}/nodes/{node.name}"
        client.delete_node(name=path).result(timeout=60)
        refused = computer.run("ssh", f"{name}-0", "true", code=255)
        assert "Node not found" in refused.stderr
        assert "tpuctl up" in refused.stderr
        asyncio.run(stack.up())
        assert computer.run("ssh", f"{name}-0", "ls").stdout == "", "the new machine"

        done = computer.tpuctl("down", "--yes", "--delete-bucket")
        assert done.returncode == 0, done.stderr
        hosts = computer.run("ssh", "-G", f"{name}-0").stdout
        assert "user someone-else" in hosts, "down removes the hosts"
        assert computer.configuration.read_text("utf-8").endswith(USER_CONFIGURATION)

    await asyncio.to_thread(use)
