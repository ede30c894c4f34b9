"""The user's own `ssh`: its command line for a worker, and hosts for its configuration.

`scp`, `rsync`, `git`, and editors read that configuration, too. Each stack has a file of hosts in
tpuctl's configuration folder; one Include line in `~/.ssh/config` makes ssh read all of them.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import Conflict, Usage
from tpuctl.files import private_folder
from tpuctl.model.text.names import CONTROL_CHARACTERS
from tpuctl.remote.keys import config_home

if TYPE_CHECKING:
    from tpuctl.remote.ssh import Address

# Options by the version of OpenSSH that introduced them (openssh.com/releasenotes.html). Earlier
# ones ignore them on their command line, but not in a file: IgnoreUnknown counts only within hosts
# that match, and ssh would refuse to connect to any other host.
SINCE = {
    "RemoteCommand": (7, 6),
    "KnownHostsCommand": (8, 5),
    "SessionType": (8, 7),
    "ForkAfterAuthentication": (8, 7),
    "StdinNull": (8, 7),
}
SESSION = {
    "RemoteCommand": "none",
    "SessionType": "default",
    "ForkAfterAuthentication": "no",
    "StdinNull": "no",
    "RequestTTY": "auto",
    "PermitLocalCommand": "no",
    "ExitOnForwardFailure": "no",
    "PubkeyAuthentication": "yes",
    "PreferredAuthentications": "publickey",
    "ProxyUseFdpass": "no",
    "AddressFamily": "any",
    "CanonicalizeHostname": "no",
    "CheckHostIP": "no",
}


def openssh_command(
    address: Address,
    key: Path,
    known_hosts: Path,
    line: str = "",
    proxy: Sequence[str] = (),
    *,
    is_interactive: bool = False,
) -> list[str]:
    """The `ssh` command line for the same connection; writes `known_hosts`.

    `line` is a command for the remote shell, which gets a terminal if it `is_interactive`; without
    a command, ssh opens a shell. `proxy` is the ProxyCommand, for addresses with a route.
    """
    name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
    write_known_hosts(known_hosts, name, address.host_keys)
    options = {
        "HostName": _host_name(address),
        "HostKeyAlias": name,
        **_options(key, known_hosts, proxy),
        # Lower levels do not say which algorithms of the server ssh was not allowed to use.
        "LogLevel": "INFO",
    }
    if is_interactive:
        options["RequestTTY"] = "yes"
    pairs = [_on_one_line(name, value).replace(" ", "=", 1) for name, value in options.items()]
    arguments = [part for pair in pairs for part in ("-o", pair)]
    target = f"{address.user}@{address.host}"
    # Nothing after -- is parsed as an option.
    command = ["ssh", "-p", str(address.port), *arguments, "--", target]
    return [*command, line] if line else command


def write_known_hosts(path: Path, name: str, host_keys: Sequence[str]) -> None:
    """Write the keys that the host of this name must present."""
    private_folder(path.parent)
    lines = (f"{_on_one_line(name, line)}\n" for line in host_keys)
    _replace(path, "".join(lines).encode(), 0o600)


def _options(key: Path, known_hosts: Path, proxy: Sequence[str]) -> dict[str, str]:
    return {
        "IgnoreUnknown": ",".join(SINCE),
        "IdentityFile": _file(key),
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": _file(known_hosts),
        # Accept only these keys, whatever the user's or system's configuration says.
        "GlobalKnownHostsFile": "/dev/null",
        "KnownHostsCommand": "none",
        "VerifyHostKeyDNS": "no",
        "UpdateHostKeys": "no",
        # Jobs may run untrusted code: keep the user's agent and display out of reach.
        "ForwardAgent": "no",
        "ForwardX11": "no",
        # What users set for all hosts, for other purposes than commands on a machine that only
        # this key opens. Which algorithms they accept stays theirs.
        **SESSION,
        # Also instead of a ProxyJump.
        "ProxyCommand": shlex.join(proxy).replace("%", "%%") if proxy else "none",
    }


def _file(path: Path) -> str:
    """A path as a value of an option that is a list of files and expands % tokens.

    Raises Usage for what ssh cannot be given: quotes and backslashes mean something else in each
    of its versions, and a variable is always expanded.
    """
    text = str(path.absolute())
    if re.search(r'["\\]|\$\{', text):
        raise Usage(
            "Path not usable with ssh",
            f"{text!r} contains \", \\ or ${{, which have a meaning in ssh's configuration",
            hint="Rename the file or folder. The key is access.ssh_key of the stack file; tpuctl's "
            "own files are in TPUCTL_CONFIG_HOME.",
        )
    return '"{}"'.format(text.replace("%", "%%"))


def _host_name(address: Address) -> str:
    """The address as a value of HostName. Raises Conflict for what is none."""
    if not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9:._%-]*", address.host):
        raise Conflict(
            "Invalid machine address",
            f"the cloud reports {address.host!r} as the address of a machine",
            hint="See what it reports:\n    tpuctl status",
        )
    return address.host.replace("%", "%%")


def _on_one_line(name: str, value: str) -> str:
    """A line of a file that ssh reads. Raises Usage for a value that would write more lines."""
    line = f"{name} {value}"
    if CONTROL_CHARACTERS.search(line):
        raise Usage(
            "Control character for ssh",
            f"{line!r} would be more than one line of ssh's files",
            hint="Rename the file or folder. If the cloud reports the value, the machine cannot be "
            "trusted: delete it with\n    tpuctl down",
        )
    return line


@cache
def _openssh_version(program: str | None) -> tuple[int, int]:
    """The version of the `ssh` program; the newest that matters if it cannot be determined."""
    output = ""
    if program is not None:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [program, "-V"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
                check=False,
            )
            output = (done.stdout + done.stderr).decode(errors="replace")
    match = re.search(r"OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else max(SINCE.values())


@dataclass(frozen=True)
class Host:
    """A name that ssh connects to with a ProxyCommand, which also writes `known_hosts`.

    ssh does not need the address. mosh does: it finds the one that was current when the file was
    written, and replaces the ProxyCommand.
    """

    name: str
    address: Address
    key: Path
    known_hosts: Path
    proxy: tuple[str, ...]

    def __str__(self) -> str:
        is_direct = self.address.route is None
        settings = {
            # Not an address through IAP, but it must not be made by a pattern of the user's.
            "HostName": _host_name(self.address) if is_direct else self.name,
            "Port": str(self.address.port),
            "User": self.address.user,
            "HostKeyAlias": self.name,
            **_options(self.key, self.known_hosts, self.proxy),
        }
        version = _openssh_version(shutil.which("ssh"))
        settings = {
            name: value for name, value in settings.items() if SINCE.get(name, version) <= version
        }
        lines = (f"    {_on_one_line(name, value)}\n" for name, value in settings.items())
        return f"Host {self.name}\n{''.join(lines)}"


class HostsFile:
    """The file of a stack's hosts. Stacks of one name share it, as they share the hosts' names."""

    def __init__(self, stack: str, project: str, cloud: str) -> None:
        self.path = _hosts_folder() / f"{stack}.conf"
        self._title = f"# Hosts of stack {stack} of project {project} ({cloud})"

    @property
    def other_stack(self) -> str:
        """The stack of this name that the file is about, if it is another one."""
        try:
            title = self.path.read_text("utf-8").partition("\n")[0]
        except OSError:
            return ""
        return "" if title == self._title else title.removeprefix("# Hosts of ")

    def text(self, hosts: Sequence[Host]) -> str:
        return "\n".join([self._title, *map(str, hosts)])

    def write(self, hosts: Sequence[Host]) -> None:
        """Write the hosts instead of earlier ones, and their current keys. Raises Usage."""
        try:
            for host in hosts:
                write_known_hosts(host.known_hosts, host.name, host.address.host_keys)
            private_folder(self.path.parent)
            _replace(self.path, self.text(hosts).encode(), 0o600)
        except OSError as error:
            raise Usage(
                "Cannot write SSH hosts",
                f"{self.path}: {error.strerror}",
                hint="Set TPUCTL_CONFIG_HOME to another folder.",
            ) from error

    def remove(self) -> bool:
        """Remove the file, unless it does not exist or is another stack's; whether it was."""
        if not self.path.exists() or self.other_stack:
            return False
        self.path.unlink(missing_ok=True)
        return True


class UserConfiguration:
    """`~/.ssh/config`, with the line that includes the hosts of all stacks."""

    def __init__(self) -> None:
        self.path = Path("~/.ssh/config").expanduser()
        folder = glob.escape(str(_hosts_folder()))
        for character in '%$"\\':  # have a meaning, which depends on the version of OpenSSH
            folder = folder.replace(character, "?")
        folder = CONTROL_CHARACTERS.sub("?", folder)
        self.line = f'Include "{folder}/*.conf"'

    def includes_hosts(self) -> bool:
        """Raises Usage if the file cannot be read."""
        return self.line.encode() in map(bytes.strip, self._read().splitlines())

    def include_hosts(self) -> None:
        """Put the line at the top: below a Host line it would be for that host only."""
        self._write(f"{self.line}\n\n".encode() + self._read())

    def exclude_hosts(self) -> bool:
        """Take the line out, unless stacks have hosts; whether it was there."""
        if any(_hosts_folder().glob("*.conf")) or not self.includes_hosts():
            return False
        before = self._read()
        line = f"{self.line}\n".encode()
        after = before.replace(f"{self.line}\n\n".encode(), b"", 1)
        self._write(after if after != before else before.replace(line, b"", 1))
        return True

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._failure(error.strerror or "") from error

    def _write(self, content: bytes) -> None:
        target = self.path.resolve()  # a link stays one
        try:
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
            is_writable = not target.exists() or os.access(target, os.W_OK)
            if not (is_writable and mode & stat.S_IWUSR):  # root may write anything
                raise self._failure("Read-only file")
            private_folder(target.parent)
            _replace(target, content, mode)
        except OSError as error:
            raise self._failure(error.strerror or "") from error

    def _failure(self, reason: str) -> Usage:
        return Usage(
            "Cannot change SSH configuration",
            f"{self.path}: {reason}",
            hint=f"The hosts are in {_hosts_folder()}. To use them, make this the first line of "
            f"the configuration:\n    {self.line}",
        )


def _hosts_folder() -> Path:
    return config_home().absolute() / "ssh" / "hosts"


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically: ssh may be reading it."""
    handle, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(content)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise
