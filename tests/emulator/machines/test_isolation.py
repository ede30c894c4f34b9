"""The isolation of machines' programs from the computer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import tpuctl
from tests.support.polling import async_until
from tpuctl.emulator.machines.interface import MachineError

REPOSITORY = Path(__file__).parents[3]


def is_running(mark: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    return True
    return False


async def test_files_outside_machine_are_read_only(booted: Any) -> None:
    for place in (Path.home(), REPOSITORY, Path("/etc"), Path("/usr/local")):
        file = place / f"written-by-a-machine-{os.getpid()}"
        done = await booted.run(f"echo x > {file}")
        # Machines have a separate /tmp, which may contain such a folder.
        if not place.is_relative_to("/tmp"):
            assert done.status != 0, place
            assert "Read-only" in done.error
        assert not file.exists()


PROBE = """
import asyncio
from tpuctl.emulator.machines.programs.processes import find_problems
print(asyncio.run(find_problems()))
"""


def test_package_may_be_where_machines_do_not_see_it(tmp_path: Path) -> None:
    """As in an environment in /tmp: machines have a separate one."""
    (tmp_path / "tpuctl").symlink_to(Path(tpuctl.__file__).parent)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ended unexpectedly" not in probe.stdout


async def test_user_home_is_hidden_except_for_interpreters(
    make_lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path.home().is_relative_to("/tmp"):
        pytest.skip("machines have a separate /tmp")
    home = Path(tempfile.mkdtemp(dir=Path.home(), prefix=".tpuctl-test-"))
    private = [".ssh/id_rsa", ".netrc", ".bash_history", ".env", ".kaggle/kaggle.json", "notes"]
    private += [".cache/huggingface/token", ".config/pip/pip.conf", "project/.env"]
    for name in private:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    private_home = Path(tempfile.mkdtemp(dir=Path.home(), prefix=".tpuctl-test-"))
    (private_home / "config").mkdir()
    (private_home / "config" / "id_ed25519").write_text("secret")
    (private_home / "key.json").write_text("secret")
    (private_home / "notes").write_text("readable")
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(private_home / "config"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(private_home / "key.json"))
    monkeypatch.setenv("HOME", str(home))
    try:
        lab = await make_lab()
        if lab.host.isolation != "user namespaces":
            pytest.skip(lab.host.isolation)
        await lab.boot()
        names = [home / name for name in private]
        names += [private_home / name for name in ("config/id_ed25519", "key.json", "notes")]
        done = await lab.run(f"ls -A {home}; cat {' '.join(map(str, names))}")
        works = await lab.run("python3 -c 'import ssl, json, pip; print(1)'; ls ~ && echo x > ~/y")
    finally:
        shutil.rmtree(home)
        shutil.rmtree(private_home)
    assert (done.out, done.status) == ("readable", 1)
    assert (works.out, works.status) == ("1\n", 0)


async def test_local_cloud_secrets_are_hidden(booted: Any) -> None:
    assert (booted.home / "authority" / "authority.key").exists()
    done = await booted.run(f"cat {booted.home}/authority/authority.key")
    assert (done.out, done.status) == ("", 1)
    assert (booted.home / "authority" / "authority.key").stat().st_mode & 0o777 == 0o600


async def test_machines_have_separate_processes_tmp_hostname_and_devices(isolated: Any) -> None:
    await isolated.boot(workers=2)
    marker = f"sleep 43{os.getpid()}"
    async with isolated.connect() as first, isolated.connect(worker=1) as second:
        process = await first.create_process(f"echo first > /tmp/file; {marker}")
        await async_until(lambda: is_running(marker), "it starts")
        listed = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done; ls /tmp"
        listing = (await second.run(listed)).stdout.decode()
        names = [(await machine.run("hostname")).stdout for machine in (first, second)]
        devices = (await first.run("ls /dev")).stdout.decode().split()
        process.kill()
    assert marker not in listing
    assert str(os.getpid()) not in listing
    assert "file" not in listing
    assert names[0] != names[1]
    assert names[0].endswith(b"-w-0\n")
    assert {"null", "zero", "urandom", "shm", "pts"} <= set(devices)
    assert not {"sda", "vda", "nvme0n1", "kmsg", "mem"} & set(devices)


async def test_namespace_privileges_are_dropped(booted: Any) -> None:
    done = await booted.run(
        "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; "
        "mount -o remount,rw / 2>/dev/null && echo remounted; "
        "mount -t tmpfs none /mnt 2>/dev/null && echo mounted"
    )
    values = dict(line.split(":\t") for line in done.out.splitlines() if ":\t" in line)
    assert int(values["CapEff"], 16) == int(values["CapBnd"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    assert "mounted" not in done.out


async def test_installed_packages_stay_on_one_machine(isolated: Any, tmp_path: Path) -> None:
    await isolated.boot(workers=2)
    project = (
        "mkdir -p p && cd p && echo 'VALUE = 5' > only_here.py && "
        'printf \'[project]\\nname = "only-here"\\nversion = "1"\\n'
        '[build-system]\\nrequires = []\\nbuild-backend = "build"\\nbackend-path = ["."]\\n\' '
        "> pyproject.toml && cat > build.py"
    )
    backend = b"""
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "only_here-1-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.write("only_here.py")
        info = "only_here-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: only-here\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
    check = "cd / && python3 -c 'import only_here; print(only_here.VALUE)'"
    async with isolated.connect() as first, isolated.connect(worker=1) as second:
        await first.run(project, input=backend, check=True)
        installed = await first.run("pip install --no-index ./p")
        assert installed.exit_status == 0, installed.stdout + installed.stderr
        assert (await first.run(check)).stdout == b"5\n"
        assert (await second.run(check)).exit_status == 1


async def test_startup_scripts_run_at_boot_on_isolated_machines(isolated: Any) -> None:
    script = "#!/bin/sh\necho from the script\nid -u > /tmp/ran.new && mv /tmp/ran.new /tmp/ran\n"
    await isolated.boot(startup_script=script)
    [folder] = (isolated.home / "machines").iterdir()
    await async_until((folder / "tmp" / "ran").exists, "the script runs")
    assert (folder / "console.log").read_text() == "from the script\n"


async def test_startup_scripts_require_isolation(
    make_lab: Any,
) -> None:
    lab = await make_lab(namespaces=False)
    assert lab.host.isolation == "none: switched off"
    with pytest.raises(MachineError, match=r"startup-script.*switched off"):
        await lab.boot(startup_script="touch ~/ran")
    assert lab.host.count_running() == 0


SERVER = """
import asyncio, sys
from pathlib import Path
import asyncssh
from tpuctl.emulator.machines.interface import MachineSpec
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.emulator.machines.host import LocalHost

async def main(home, cache, mark, namespaces):
    host = LocalHost(Path(home), api_address=("127.0.0.1", 9), images=ImageStore(Path(cache)),
                     namespaces=namespaces == "True")
    await host.start()
    name = "projects/p/locations/z/nodes/n/workers/0"
    endpoints = tuple(await host.reserve([name]))
    key = asyncssh.generate_private_key("ssh-ed25519")
    keys = {"ssh-keys": "anna:" + key.export_public_key().decode()}
    spec = MachineSpec(name, "n", 0, endpoints, "p", 1, "z", "v3-8", "tpu-ubuntu2204-base",
                       "a@b", "t", keys)
    await host.boot(spec, lambda line: None)
    async with asyncssh.connect(endpoints[0].address, endpoints[0].ssh_port, username="anna",
                                client_keys=[key], known_hosts=None, config=None) as connection:
        await connection.run(f"setsid {mark} >/dev/null 2>&1 </dev/null & exit 0")
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("namespaces", [True, False])
async def test_a_killed_server_leaves_no_process_behind(
    make_lab: Any, images: Any, tmp_path: Path, namespaces: bool
) -> None:
    if namespaces and (await make_lab()).host.isolation != "user namespaces":
        pytest.skip("machines are not isolated here")
    mark = f"sleep {45 if namespaces else 44}{os.getpid()}"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(tmp_path / "k"), str(images.cache), mark),
        str(namespaces),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        assert await asyncio.wait_for(server.stdout.readline(), 60) == b"ready\n"
        assert is_running(mark)
    finally:
        server.send_signal(signal.SIGKILL)
        await server.wait()
    await async_until(lambda: not is_running(mark), "the machine's processes end")


async def test_host_service_sockets_are_unreachable(booted: Any) -> None:
    folder = Path("/run") / f"tpuctl-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this user may not write to /run")
    try:
        with socket.socket(socket.AF_UNIX) as service:
            service.bind(str(folder / "socket"))
            assert (await booted.run(f"test -e {folder}/socket")).status == 1
    finally:
        (folder / "socket").unlink()
        folder.rmdir()
