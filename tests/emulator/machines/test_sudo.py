"""The machines' sudo, over real SSH: root inside the machine only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


async def test_sudo_becomes_root_without_password(booted: Any) -> None:
    done = await booted.run(
        "sudo -n id -u; sudo whoami; sudo sh -c 'echo $HOME $USER $SUDO_USER; exit 7'; echo $?; "
        "whoami; id -u; command -v sudo"
    )
    homes = next((booted.home / "machines").iterdir()) / "home"
    lines = done.out.splitlines()
    assert lines[:6] == [
        "0",
        "root",
        f"{homes}/root root anna",
        "7",
        "anna",
        str(os.getuid() or 1000),
    ]
    assert done.error == ""


@pytest.mark.parametrize("folder", [Path("/etc"), Path("/usr/local/bin"), Path.home()])
async def test_root_is_confined_to_machine(booted: Any, folder: Path) -> None:
    """Neither a remount nor another mount of the same file system makes it writable."""
    file = folder / f"written-by-root-of-a-machine-{os.getpid()}"
    for way in (
        f"touch {file}",
        f"sh -c 'mount -o remount,bind,rw / && touch {file}'",
        f"sh -c 'mount --bind {folder} /mnt && mount -o remount,bind,rw /mnt && "
        f"touch /mnt/{file.name}'",
        f"sh -c 'umount -l /tmp && touch /tmp/{file.name}'",
    ):
        done = await booted.run(f"sudo {way}")
        assert done.status != 0, way
    assert not file.exists()
    assert not (Path("/tmp") / file.name).exists()


async def test_root_cannot_see_or_kill_outside_processes(booted: Any) -> None:
    secret = booted.home / "authority" / "authority.key"
    assert secret.exists()
    done = await booted.run(
        f"sudo cat {secret} /proc/1/environ; sudo ls /proc/{os.getpid()}; "
        "sudo sysctl -w kernel.hostname=other; sudo hostname other; hostname"
    )
    assert "PRIVATE KEY" not in done.out
    assert f"/proc/{os.getpid()}" in done.error
    assert done.out.splitlines()[-1].startswith("t1v-n-")


async def test_options_and_environment_match_sudo(booted: Any) -> None:
    done = await booted.run(
        "export MINE=mine; sudo printenv MINE; sudo -E printenv MINE; "
        "sudo --preserve-env=MINE printenv MINE; sudo MINE=own printenv MINE; "
        "sudo -u anna -H sh -c 'echo $USER'; sudo -i pwd; echo 'a b' | sudo tee /tmp/written; "
        "sudo -s echo 'c  d' '\"e'; sudo -v && sudo -nl | tail -1; sudo -D /var sh -c pwd; "
        "sudo -b sleep 0.01; "
        "sudo chown anna:root /tmp/written && sudo -n sudo id -u; sudo printenv GCE_METADATA_HOST"
    )
    home = str(next((booted.home / "machines").iterdir()) / "home" / "root")
    assert done.out.splitlines() == [
        *("mine", "mine", "own", "anna", home, "a b", 'c  d "e', "    (ALL) NOPASSWD: ALL"),
        *("/var", "0", (await booted.run("echo $GCE_METADATA_HOST")).out.strip()),
    ]
    assert done.error == ""
    for command, words in (
        ("sudo -n no-such-program", "sudo: no-such-program: command not found"),
        ("sudo -u bob true", "sudo: unknown user bob"),
        ("sudo --no-such-option", "sudo: option --no-such-option not recognized"),
    ):
        refused = await booted.run(command)
        assert (refused.status, refused.error.splitlines()[0]) == (1, words)


async def test_sudo_passes_terminal_and_signals(booted: Any) -> None:
    async with booted.connect() as connection:
        process = await connection.create_process(
            "sudo -i", term_type="xterm", term_size=(80, 24), encoding="utf-8"
        )
        process.stdin.write("echo as-$(whoami)-on-$(basename $(tty)); exit 3\n")
        out = await process.stdout.read()
        await process.wait()
    assert "as-root-on-" in out
    assert "not a tty" not in out
    assert process.exit_status == 3
    assert (await booted.run("sudo sh -c 'kill -TERM $$'")).signal == "TERM"


async def test_sudo_requires_namespaces(
    make_lab: Any,
) -> None:
    lab = await make_lab(namespaces=False)
    await lab.boot()
    done = await lab.run("sudo -n true")
    assert (done.status, done.out) == (1, "")
    assert done.error.startswith("sudo: root is not available on machines of this local cloud")
