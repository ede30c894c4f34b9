"""Machines over real SSH, with asyncssh's client and OpenSSH's programs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.polling import async_until
from tpuctl.local_cloud.machine_images import ImageStore

pytestmark = pytest.mark.long

needs_openssh = pytest.mark.skipif(
    not (shutil.which("ssh") and shutil.which("scp")), reason="OpenSSH's client is not installed"
)


async def refused(lab: Any, **options: Any) -> bool:
    with contextlib.suppress(asyncssh.PermissionDenied):
        async with lab.connect(**options):
            return False
    return True


def running(mark: str) -> list[str]:
    """Command lines on this computer that contain the marker."""
    matches = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if mark in line:
                    matches.append(line)
    return matches


async def test_only_keys_and_users_in_metadata_are_accepted(lab: Any) -> None:
    await lab.boot()
    assert (await lab.run("whoami; echo $USER")).out.split()[-1] == "anna"
    assert await refused(lab, key=asyncssh.generate_private_key("ssh-ed25519"))
    assert await refused(lab, user="bert")
    assert await refused(lab, user="root")


async def test_password_login_is_not_offered(lab: Any) -> None:
    spec = await lab.boot()
    with pytest.raises(asyncssh.PermissionDenied) as denied:
        await asyncssh.connect(
            spec.endpoint.address,
            spec.endpoint.ssh_port,
            username="anna",
            password="anna",
            client_keys=None,
            known_hosts=None,
            config=None,
            agent_path=None,
        )
    assert "password" not in str(denied.value).lower()


async def test_changed_keys_apply_to_running_machine(lab: Any) -> None:
    await lab.boot()
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    text = other.export_public_key().decode().strip()
    lab.change(ssh_keys=f"no key at all\nanna:ssh-rsa rubbish\nbert:{text} bert@home")
    assert await refused(lab)
    assert not await refused(lab, user="bert", key=other)
    ended = 'google-ssh {"userName":"bert","expireOn":"2020-01-01T00:00:00+0000"}'
    lab.change(ssh_keys=f"bert:{text} {ended}")
    assert await refused(lab, user="bert", key=other)
    lab.change(ssh_keys=f"bert:{text} {ended.replace('2020', '2199')}")
    assert not await refused(lab, user="bert", key=other)


async def test_host_keys_are_unique_and_survive_reboots(lab: Any) -> None:
    spec = await lab.boot(workers=2)
    first, second = (lab.host.guest_attributes(spec.name)["hostkeys"] for spec in lab.specs)
    assert first != second
    await lab.host.shut_down(spec.name)
    await lab.host.boot(spec, lambda _: None)
    assert lab.host.guest_attributes(spec.name)["hostkeys"] == first


async def test_exit_status(lab: Any) -> None:
    await lab.boot()
    for status in (0, 1, 7, 127, 255):
        assert (await lab.run(f"exit {status}")).status == status


async def test_stdout_stderr_and_exit_signal(either: Any) -> None:
    await either.boot()
    done = await either.run("echo out; echo err >&2; kill -USR1 $$")
    assert (done.out, done.error, done.signal) == ("out\n", "err\n", "USR1")


async def test_signal_reaches_process_group(either: Any) -> None:
    await either.boot()
    async with either.connect() as connection:
        process = await connection.create_process("sleep 1234.5 | sleep 1234.5; echo no")
        await async_until(lambda: len(running("sleep 1234.5")) >= 2, "the sleeps start")
        process.send_signal("TERM")
        done = await asyncio.wait_for(process.wait(), 20)
    assert done.exit_signal is not None
    assert done.exit_signal[0] == "TERM"
    assert done.stdout == b""
    assert not running("sleep 1234.5")


async def test_fifty_megabytes_are_transferred_in_both_directions(lab: Any) -> None:
    await lab.boot()
    payload = os.urandom(50_000_000)
    async with lab.connect() as connection:
        done = await asyncio.wait_for(connection.run("tee copy", input=payload), 120)
        summed = await connection.run("sha256sum < copy")
    digest = hashlib.sha256(payload).hexdigest()
    assert hashlib.sha256(done.stdout).hexdigest() == digest
    assert summed.stdout.split()[0].decode() == digest


async def test_stalled_program_does_not_block_others(lab: Any) -> None:
    await lab.boot()
    async with lab.connect() as connection:
        deaf = await connection.create_process("exec sleep 1235.5")
        deaf.stdin.write(b"x" * 10_000_000)  # more than the capacity of any pipe
        loud = await connection.create_process("yes")  # its output is not read
        assert (await asyncio.wait_for(connection.run("echo hello"), 20)).stdout == b"hello\n"
        deaf.kill()
        loud.kill()


async def test_program_may_close_stdin_early(lab: Any) -> None:
    await lab.boot()
    done = await lab.run("head -c 3; exec <&-; sleep 0.2; echo", input=b"abcdef" * 1_000_000)
    assert (done.out, done.status) == ("abc\n", 0)


SHOW_SIZES = """
import os, signal
def show(*_):
    columns, rows = os.get_terminal_size()
    os.write(1, f"{rows} {columns}\\n".encode())
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGWINCH, show)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


async def test_terminal_size_name_and_control_characters(either: Any) -> None:
    await either.boot()
    async with either.connect() as connection:
        process = await connection.create_process(
            f"stty size; echo $TERM; test -t 0 -a -t 2 && tty; exec python3 -c '{SHOW_SIZES}'",
            term_type="xterm-256color",
            term_size=(101, 33),
        )
        output = await asyncio.wait_for(process.stdout.readuntil(b"ready\r\n"), 20)
        size, term, terminal, _ = output.decode().split("\r\n")[:4]
        assert (size, term) == ("33 101", "xterm-256color")
        assert terminal.startswith("/dev/")
        process.change_terminal_size(55, 22)
        assert await asyncio.wait_for(process.stdout.readuntil(b"22 55\r\n"), 20)
        process.stdin.write(b"\x03")
        done = await asyncio.wait_for(process.wait(), 20)
    assert done.exit_signal is not None
    assert done.exit_signal[0] == "INT"


async def test_login_shell_uses_machine_python(
    lab: Any,
) -> None:
    await lab.boot()
    async with lab.connect() as connection:
        done = await asyncio.wait_for(
            connection.run(None, input=b"shopt -q login_shell && type -P python3; exit 4\n"), 30
        )
    assert done.stdout.decode().strip().endswith("/python/bin/python3")
    assert str(lab.home) in done.stdout.decode()
    assert done.exit_status == 4


async def test_environment_is_not_inherited(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-machines")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "mine")
    await lab.boot()
    result = await lab.run("env", env={"LC_TIME": "C", "GIT_AUTHOR_NAME": "x"})
    names = {line.partition("=")[0] for line in result.out.splitlines()}
    foreign = {"AWS_SECRET_ACCESS_KEY", "CLOUDSDK_CORE_PROJECT", "GIT_AUTHOR_NAME"}
    assert names.isdisjoint(foreign)
    assert "/nowhere" not in result.out
    assert {"LC_TIME", "HOME", "LANG", "GCE_METADATA_HOST", "https_proxy"} <= names
    assert {"SSH_CLIENT", "SSH_CONNECTION"} <= names, "bash uses them to detect sshd"
    assert (await lab.run("pwd")).out.strip() == (await lab.run("echo $HOME")).out.strip()
    shared = (await lab.run("echo $PIP_CACHE_DIR $UV_CACHE_DIR")).out.split()
    downloads = ImageStore().downloads
    assert shared == [str(downloads), str(downloads / "uv")], "once for all machines"


async def test_detached_program_survives_connection_but_not_shutdown(
    either: Any,
) -> None:
    await either.boot()
    mark = f"sleep 40{os.getpid()}"
    await either.run(f"setsid nohup {mark} >/dev/null 2>&1 </dev/null & disown; exit 0")
    await async_until(lambda: running(mark), "it starts")
    assert (await either.run("echo again")).out == "again\n"
    assert running(mark)
    await either.host.shut_down(either.name)
    assert not running(mark)


async def test_programs_get_sigterm_unless_machine_is_discarded(
    make_lab: Any, tmp_path: Path
) -> None:
    lab = await make_lab(namespaces=False)  # so that a program can write outside its disk
    ready, output_file, mark = tmp_path / "ready", tmp_path / "output", f"sleep 46{os.getpid()}"
    script = f"trap '' HUP; trap 'echo > {output_file}; exit' TERM\n{mark} & echo > {ready}\nwait\n"
    for end, is_asked in ((lab.host.discard, False), (lab.host.shut_down, True)):
        await lab.boot()
        await lab.run("cat > script", input=script.encode())
        await lab.run("setsid bash script >/dev/null 2>&1 </dev/null & exit 0")
        await async_until(ready.exists, "it starts")
        ready.unlink()
        await end(lab.name)
        assert not running(mark)
        assert output_file.exists() == is_asked


async def test_discard_deletes_disk_with_any_permissions(make_lab: Any, tmp_path: Path) -> None:
    lab = await make_lab()
    await lab.boot()
    await lab.run(f"mkdir -p a/b && touch a/b/c && ln -s {tmp_path} a/out && chmod 500 a/b a")
    (tmp_path / "outside").mkdir(mode=0o555)
    await lab.host.discard(lab.name)
    assert not list((lab.home / "machines").iterdir())
    await lab.boot()  # the name is available immediately
    await lab.host.discard(lab.name)
    await lab.host.close()
    assert not list(lab.home.rglob("c"))
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o555


async def test_next_server_removes_leftover_disks(make_lab: Any) -> None:
    lab = await make_lab()
    await lab.boot()
    await lab.run("echo > file-of-a-job")
    [disk] = (lab.home / "machines").iterdir()
    await lab.host.close()
    disk.rename(lab.home / "discarded" / "left")
    again = await make_lab()
    await again.host.close()
    assert not list(again.home.rglob("file-of-a-job"))


async def test_lost_connection_hangs_up_only_terminal_programs(either: Any) -> None:
    await either.boot()
    with_terminal, without = f"sleep 41{os.getpid()}", f"sleep 42{os.getpid()}"
    async with either.connect() as connection:
        await connection.create_process(with_terminal, term_type="xterm")
        await connection.create_process(without)
        await async_until(lambda: running(with_terminal) and running(without), "both start")
        connection.abort()
    await async_until(lambda: not running(with_terminal), "the terminal's program is hung up")
    assert running(without)  # as with sshd


async def test_shutdown_drops_connections_and_keeps_disk(lab: Any) -> None:
    spec = await lab.boot()
    async with lab.connect() as connection:
        await connection.run("echo kept > file")
        await lab.host.shut_down(spec.name)
        await asyncio.wait_for(connection.wait_closed(), 10)
    assert lab.host.count_running() == 0
    await lab.host.boot(spec, lambda _: None)
    assert (await lab.run("cat file")).out == "kept\n"
    await lab.host.discard(spec.name)
    assert not list((lab.home / "machines").iterdir())


async def test_sftp_files(either: Any) -> None:
    await either.boot()
    async with either.connect() as connection, connection.start_sftp_client() as sftp:
        async with sftp.open("note.txt", "wb") as file:
            await file.write(b"at home")
        await sftp.mkdir("folder")
        assert sorted(await sftp.listdir(".")) == [
            *(".", "..", ".bashrc", ".profile", "folder", "note.txt"),
        ]
        result = await connection.run("cat note.txt; test -d folder")
    assert (result.stdout, result.exit_status) == (b"at home", 0)


async def test_sftp_sees_the_same_files_as_programs(isolated: Any, tmp_path: Path) -> None:
    lab = isolated
    scratch = f"scratch-{os.getpid()}"
    await lab.boot()
    async with lab.connect() as connection, connection.start_sftp_client() as sftp:
        async with sftp.open(f"/tmp/{scratch}", "wb") as file:
            await file.write(b"in the machine's own /tmp")
        with pytest.raises(asyncssh.SFTPError):
            await sftp.open(str(tmp_path / "outside"), "wb")
        await sftp.symlink(str(tmp_path), "way-out")
        with pytest.raises(asyncssh.SFTPError):
            await sftp.open("way-out/outside", "wb")
        with pytest.raises(asyncssh.SFTPError):
            await sftp.remove(str(lab.home / "addresses.json"))
    assert not (tmp_path / "outside").exists()
    assert not Path("/tmp", scratch).exists()
    [match] = (lab.home / "machines").glob(f"*/tmp/{scratch}")
    assert match.read_bytes() == b"in the machine's own /tmp"


async def test_forwarding_reaches_only_the_node(lab: Any) -> None:
    spec = await lab.boot()
    address = spec.endpoint.address
    serve = (
        "import http.server,sys; h=http.server.SimpleHTTPRequestHandler; "
        f"s=http.server.HTTPServer(('{address}',0),h); print(s.server_port,flush=True); "
        "s.handle_request()"
    )
    async with lab.connect() as connection:
        process = await connection.create_process(f'python3 -c "{serve}"')
        port = int(await asyncio.wait_for(process.stdout.readline(), 20))
        reader, writer = await connection.open_connection("localhost", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
        with pytest.raises(asyncssh.ChannelOpenError, match="own node"):
            await connection.open_connection("192.0.2.1", 80)


async def run_program(*command: str) -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out, error


async def openssh_options(lab: Any, key: Path, folder: Path) -> tuple[str, str, list[str]]:
    """Boot a machine; returns its address, its port, and OpenSSH's options to log in."""
    spec = await lab.boot()
    published = lab.host.guest_attributes(spec.name)["hostkeys"]["ssh-ed25519"]
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"machine ssh-ed25519 {published}\n")
    options = ["-F", "none", "-i", str(key), "-o", f"UserKnownHostsFile={known_hosts}"]
    options += ["-o", "HostKeyAlias=machine", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"]
    return spec.endpoint.address, str(spec.endpoint.ssh_port), options


@needs_openssh
async def test_openssh_runs_and_copies(lab: Any, private_key_file: Path, tmp_path: Path) -> None:
    address, port, options = await openssh_options(lab, private_key_file, tmp_path)
    status, out, _ = await run_program(
        "ssh", *options, "-p", port, f"anna@{address}", "echo $USER; exit 9"
    )
    assert (status, out) == (9, b"anna\n")
    status, out, _ = await run_program(
        "ssh", *options, "-tt", "-p", port, f"anna@{address}", "test -t 1 && echo terminal"
    )
    assert (status, out) == (0, b"terminal\r\n")

    source, back = tmp_path / "source.bin", tmp_path / "back.bin"
    source.write_bytes(os.urandom(3_000_000))
    for flags in ([], ["-O"]):  # SFTP, and the legacy scp protocol
        copy = ["scp", *flags, *options, "-P", port]
        assert await run_program(*copy, str(source), f"anna@{address}:copy.bin") == (0, b"", b"")
        assert await run_program(*copy, f"anna@{address}:copy.bin", str(back)) == (0, b"", b"")
        assert back.read_bytes() == source.read_bytes()
        back.unlink()


@pytest.fixture
def servers_umask() -> Iterator[None]:
    """The umask of the local cloud's process is restrictive."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@needs_openssh
@pytest.mark.usefixtures("servers_umask")
@pytest.mark.parametrize("protocol", [[], ["-O"]], ids=["SFTP", "legacy-scp"])
async def test_copied_files_have_the_same_modes_as_with_sshd(
    lab: Any, private_key_file: Path, tmp_path: Path, protocol: list[str]
) -> None:
    """The source's mode minus the umask 022 of Google's images; with -p the exact mode."""
    address, port, options = await openssh_options(lab, private_key_file, tmp_path)
    folder = tmp_path / "sent"
    folder.mkdir()
    modes = {"program": 0o755, "secret": 0o600, "shared": 0o664, "readable": 0o444}
    for name, mode in modes.items():
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    folder.chmod(0o750)
    scp = ["scp", *protocol, *options, "-P", port, "-r"]
    assert await run_program(*scp, str(folder), f"anna@{address}:new") == (0, b"", b"")
    assert await run_program(*scp, "-p", str(folder), f"anna@{address}:exact") == (0, b"", b"")
    listed = "cd {} && stat -c '%a %n' . program readable secret shared"
    new, exact = [await lab.run(listed.format(name)) for name in ("new", "exact")]
    assert new.out.splitlines() == [
        *("750 .", "755 program", "444 readable", "600 secret", "644 shared")
    ]
    assert exact.out.splitlines() == [
        *("750 .", "755 program", "444 readable", "600 secret", "664 shared")
    ]


@pytest.mark.usefixtures("servers_umask")
async def test_sftp_applies_requested_modes(lab: Any) -> None:
    await lab.boot()
    async with lab.connect() as connection, connection.start_sftp_client() as client:
        await client.mkdir("folder", asyncssh.SFTPAttrs(permissions=0o777))
        await client.mkdir("plain")
        async with client.open("asked", "wb", asyncssh.SFTPAttrs(permissions=0o750)):
            pass
        async with client.open("asked", "wb", asyncssh.SFTPAttrs(permissions=0o600)):
            pass  # it exists: its mode does not change
        async with client.open("unasked", "wb"):
            pass
    done = await lab.run("stat -c '%a %n' asked folder plain unasked")
    assert done.out.splitlines() == ["750 asked", "755 folder", "755 plain", "644 unasked"]


@needs_openssh
async def test_openssh_rejects_changed_host_key(
    lab: Any, private_key_file: Path, tmp_path: Path
) -> None:
    spec = await lab.boot()
    wrong = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[1]
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"machine ssh-ed25519 {wrong}\n")
    status, _, error = await run_program(
        *(
            "ssh",
            "-F",
            "none",
            "-i",
            str(private_key_file),
            "-o",
            f"UserKnownHostsFile={known_hosts}",
        ),
        *("-o", "HostKeyAlias=machine", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"),
        *("-p", str(spec.endpoint.ssh_port), f"anna@{spec.endpoint.address}", "true"),
    )
    assert status == 255
    assert b"verification failed" in error
