"""The lock of a machine's chips, which one program holds, as with libtpu."""

from __future__ import annotations

import shlex

from tests.emulator.machines.conftest import Lab

TAKE = "from _tpuctl.simulated_tpu.chip_lock import take; take()"
HOLD = f"python3 -c {shlex.quote(f'{TAKE}; print(os.getpid(), flush=True); input()')}".replace(
    "from _tpuctl", "import os; from _tpuctl", 1
)
LISTED = "ls /tmp | grep -c libtpu_lockfile"


async def test_one_program_holds_the_chips_until_it_ends(booted: Lab) -> None:
    async with booted.connect() as connection:
        holder = await connection.create_process(HOLD, encoding="utf-8")
        pid = (await holder.stdout.readline()).strip()
        second = await booted.run(f'python3 -c "{TAKE}"')
        assert second.status == 1
        # The text is libtpu's: facts of jax-ml/jax#10192.
        message = f"The TPU is already in use by process with pid {pid}. Not attempting to load "
        assert f"{message}libtpu.so in this process." in second.error
        assert (
            await booted.run(f'TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 python3 -c "{TAKE}"')
        ).status == 0
        assert (await booted.run(LISTED)).out == "1\n"
        holder.stdin.write("\n")
        await holder.wait()
    assert (await booted.run(LISTED)).out == "0\n"
    assert (await booted.run(f'python3 -c "{TAKE}; {TAKE}"')).status == 0


async def test_lock_of_a_killed_program_is_left_and_unused(booted: Lab) -> None:
    kill = "import os; os.kill(os.getpid(), 9)"
    assert (await booted.run(f'python3 -c "{TAKE}; {kill}"')).status != 0
    assert (await booted.run(LISTED)).out == "1\n"
    assert (await booted.run(f'python3 -c "{TAKE}"')).status == 0
