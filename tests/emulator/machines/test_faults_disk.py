"""Full and limited disks, with programs of real machines."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tpuctl.emulator.machines.interface import MachineError

MIB = 1 << 20
# Writes up to MAX bytes to PATH, and prints how many were written and the errno: PATH, MAX.
WRITER = """
import os, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
written, why = 0, 0
while written < int(sys.argv[2]) and not why:
    try:
        written += os.write(out, bytes(4096))
    except OSError as error:
        why = error.errno
print(written, why, flush=True)
"""


async def write(lab: Any, path: str, most: int = 2 * MIB) -> tuple[int, int]:
    result = await lab.run(f"python3 -c '{WRITER}' {path} {most}")
    assert result.status == 0, result.error
    written, error_number = map(int, result.out.split())
    return written, error_number


async def test_full_disk_rejects_writes(booted: Any) -> None:
    paths = ("~/x", "/tmp/x", "/var/tmp/x", "~/.local/lib/x")
    await booted.run("mkdir -p ~/.local/lib; echo before > ~/old")
    await booted.host.limit_disk(booted.name, 0)
    assert booted.host.disk_free(booted.name) == 0
    for path in paths:
        assert await write(booted, path) == (0, errno.ENOSPC), path
    assert (await booted.run("cat ~/old")).out == "before\n"
    assert "No space left on device" in (await booted.run("echo more >> ~/old")).error
    assert (await booted.run("df --output=avail ~ | tail -1")).out.split() == ["0"]
    await booted.host.limit_disk(booted.name, None)
    for path in paths:
        assert await write(booted, path) == (2 * MIB, 0), path
    assert booted.host.disk_free(booted.name) is None


async def test_limit_is_shared_by_all_folders(booted: Any) -> None:
    await booted.run("python3 -c pass")  # compiles what gives programs the TPU's devices
    await booted.host.limit_disk(booted.name, MIB)
    assert booted.host.disk_free(booted.name) == MIB
    assert await write(booted, "~/x", MIB // 2) == (MIB // 2, 0)
    assert await write(booted, "/tmp/x") == (MIB // 2, errno.ENOSPC)
    assert await write(booted, "~/y") == (0, errno.ENOSPC)
    assert booted.host.disk_free(booted.name) == 0
    await booted.run("rm ~/x")
    assert await write(booted, "/var/tmp/x") == (MIB // 2, errno.ENOSPC)


async def test_running_program_hits_limit_in_open_file(booted: Any) -> None:
    """It started after the limit, which it reaches while writing; then the limit is lifted."""
    await booted.run("python3 -c pass")
    await booted.host.limit_disk(booted.name, MIB)
    program = WRITER.replace("print(", "input(); print(") + WRITER
    async with booted.connect() as connection:
        process = await connection.create_process(
            f"mkdir -p job && cd job && python3 -c '{program}' log {2 * MIB}", encoding="utf-8"
        )
        process.stdin.write("\n")
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert line.split() == [str(MIB), str(errno.ENOSPC)]
        again = await asyncio.wait_for(process.stdout.readline(), 20)
        assert again.split() == ["0", str(errno.ENOSPC)]
    async with booted.connect() as connection:
        process = await connection.create_process(
            f"cd job && python3 -c '{program}' log {2 * MIB}", encoding="utf-8"
        )
        await booted.host.limit_disk(booted.name, None)
        process.stdin.write("\n")
        await asyncio.wait_for(process.stdout.readline(), 20)
        again = await asyncio.wait_for(process.stdout.readline(), 20)
        assert again.split() == [str(2 * MIB), "0"]


async def test_limit_applies_to_files_copied_over_ssh(booted: Any, tmp_path: Path) -> None:
    await booted.host.limit_disk(booted.name, MIB)
    local = tmp_path / "file"
    local.write_bytes(os.urandom(2 * MIB))
    async with booted.connect() as connection, connection.start_sftp_client() as client:
        with pytest.raises(asyncssh.SFTPFailure, match="No space left"):
            await client.put(str(local), "copied")
        await client.remove("copied")
        await client.mkdir("folder")
        assert await client.listdir("folder") == [".", ".."]
    assert (await booted.run("ls ~")).out == "folder\n"
    with pytest.raises((asyncssh.Error, OSError)):
        async with booted.connect() as connection:
            await asyncssh.scp(str(local), (connection, "copied"))
    await booted.run("rm ~/copied")
    small = tmp_path / "small"
    small.write_bytes(b"small")
    async with booted.connect() as connection, connection.start_sftp_client() as client:
        await client.put(str(small), "/tmp/small")
    assert (await booted.run("cat /tmp/small")).out == "small"


async def test_limit_applies_to_one_worker(isolated: Any) -> None:
    await isolated.boot(workers=2)
    await isolated.host.limit_disk(isolated.specs[1].name, 0)
    assert await write(isolated, "~/x") == (2 * MIB, 0)
    async with isolated.connect(worker=1) as connection:
        done = await connection.run("echo x > x", encoding="utf-8")
    assert "No space left" in str(done.stderr)


async def test_limit_exists_before_programs_start(isolated: Any) -> None:
    isolated.host.disk_limit = lambda name: 0
    await isolated.boot()
    assert await write(isolated, "~/x") == (0, errno.ENOSPC)


async def test_limit_requires_namespaces(make_lab: Any) -> None:
    lab = await make_lab(namespaces=False)
    await lab.boot()
    with pytest.raises(MachineError, match="only where machines are isolated"):
        await lab.host.limit_disk(lab.name, 0)
    assert await write(lab, "~/x") == (2 * MIB, 0)
    with pytest.raises(MachineError, match="is not running"):
        await lab.host.limit_disk("another", 0)
