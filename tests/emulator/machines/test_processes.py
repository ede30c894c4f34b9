"""A machine's init process under many concurrent requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.programs.processes import Init

PLAIN = {"PATH": os.defpath}


@pytest.fixture
async def init() -> AsyncIterator[Init]:
    init = await Init.start(None)
    yield init
    await init.stop(0.2)


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/dev/fd").iterdir()}


async def run_echo(init: Init, number: int, *, on_terminal: bool) -> tuple[str, int]:
    """The program's output and exit code."""
    command = ["/bin/sh", "-c", f"echo {number}; read line; exit {number % 100}"]
    if on_terminal:
        started = await init.spawn(command, env=PLAIN, cwd="/", terminal=(24, 80))
        assert started.terminal is not None
        os.write(started.terminal, b"\n")
        ended = await started.exit
        text = b""
        with contextlib.suppress(OSError):  # EIO: all programs have closed the terminal
            while data := os.read(started.terminal, 100):
                text += data
        os.close(started.terminal)
        return text.decode().replace("\r\n", ""), ended.code
    null = os.open(os.devnull, os.O_RDWR)
    out, into = os.pipe()
    try:
        started = await init.spawn(command, env=PLAIN, cwd="/", files=(null, into, null))
    finally:
        os.close(into)
        os.close(null)
    ended = await started.exit
    text = os.read(out, 100).decode().strip()
    os.close(out)
    return text, ended.code


async def test_concurrent_processes_have_separate_files_and_exit_codes(init: Init) -> None:
    before = descriptors()
    runs = [run_echo(init, number, on_terminal=number % 3 == 0) for number in range(300)]
    for number, (text, code) in enumerate(await asyncio.gather(*runs)):
        assert text == str(number)
        assert code == number % 100
    assert descriptors() <= before  # other tests' descriptors may have been closed


async def test_canceled_spawn_does_not_affect_others(init: Init) -> None:
    async def give_up(number: int) -> None:
        started = asyncio.create_task(
            init.spawn(["/bin/sh", "-c", "read line"], env=PLAIN, cwd="/", terminal=(1, 1))
        )
        await asyncio.sleep(0)
        started.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await started

    crowd = [give_up(n) if n % 2 else run_echo(init, n, on_terminal=n % 4 == 0) for n in range(60)]
    answers = await asyncio.gather(*crowd)
    assert [text for text, _ in answers[::2]] == [str(number) for number in range(0, 60, 2)]


async def test_unknown_program_is_reported(init: Init) -> None:
    out, into = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    started = await init.spawn(["/no/such/shell"], env=PLAIN, cwd="/", files=(null, into, into))
    os.close(into)
    os.close(null)
    assert (await started.exit).code == 127
    assert os.read(out, 200) == b"/no/such/shell: No such file or directory\n"
    os.close(out)


async def test_spawn_fails_after_shutdown(init: Init) -> None:
    await init.stop(0)
    with pytest.raises(MachineError, match="shut down"):
        await init.spawn(["/bin/sh"], env=PLAIN, cwd="/", terminal=(1, 1))
