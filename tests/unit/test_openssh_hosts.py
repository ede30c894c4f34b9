"""Hosts and the Include line in ssh's configuration, as the ssh program reads them."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example
from hypothesis import strategies as st

from tests.support.properties import given, settings
from tpuctl.errors import Conflict, Usage
from tpuctl.remote.openssh import Host, HostsFile, UserConfiguration, write_known_hosts
from tpuctl.remote.ssh import Address

ADDRESS = Address("192.0.2.7", 2222, "ann", ("ssh-ed25519 AAAA",))
MINE = (
    b"# Mine: \xff\nHost *\n    User someone-else\n    HostName %h.example.com\n    ProxyJump x\n"
    b"    RemoteCommand tmux\n    SessionType none\n    ForkAfterAuthentication yes\n"
    b"    StdinNull yes\n    RequestTTY force\n    PermitLocalCommand yes\n    LocalCommand false\n"
    b"    PubkeyAuthentication no\n    PreferredAuthentications password\n"
    b"    ProxyUseFdpass yes\n    AddressFamily inet6\n    CanonicalizeHostname always\n"
)
# The defaults of ssh_config(5): what a host needs, whatever the user sets for all hosts.
NEEDED = {
    "remotecommand": None,
    "sessiontype": "default",
    "forkafterauthentication": "no",
    "stdinnull": "no",
    "requesttty": "auto",
    "permitlocalcommand": "no",
    "pubkeyauthentication": "true",
    "preferredauthentications": "publickey",
    "proxyusefdpass": "no",
    "addressfamily": "any",
    "canonicalizehostname": "false",
    "proxyjump": None,
}


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserConfiguration:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "100% [my] $settings\nHost *\n"))
    return UserConfiguration()


def host(name: str, folder: Path) -> Host:
    command = ("env", "A=b c", "proxy 100%", "0")
    return Host(name, ADDRESS, folder / "a key", folder / "hosts 50%", command)


def options(configuration: UserConfiguration, name: str, *more: str) -> dict[str, str]:
    command = ["ssh", "-F", str(configuration.path), *more, "-G", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_hosts_precede_the_users_patterns(configuration: UserConfiguration, tmp_path: Path) -> None:
    configuration.path.parent.mkdir(parents=True)
    configuration.path.write_bytes(MINE)
    HostsFile("bert", "p", "google").write([host("bert-0", tmp_path), host("bert-1", tmp_path)])
    assert not configuration.includes_hosts()
    configuration.include_hosts()
    assert configuration.includes_hosts()

    read = options(configuration, "bert-1")
    assert (read["hostname"], read["port"], read["user"]) == ("192.0.2.7", "2222", "ann")
    assert read["hostkeyalias"] == "bert-1"
    assert read["userknownhostsfile"] == str(tmp_path / "hosts 50%")
    assert read["identityfile"] == str(tmp_path / "a key")
    assert read["proxycommand"] == "env 'A=b c' 'proxy 100%%' 0"
    assert read["stricthostkeychecking"] in ("true", "yes")
    assert read["forwardagent"] == "no"
    assert {name: read.get(name) for name in NEEDED} == NEEDED
    overridden = options(configuration, "bert-1", "-o", "RequestTTY=force", "-o", "User=me")
    assert (overridden["requesttty"], overridden["user"]) == ("force", "me")
    other = options(configuration, "elsewhere")
    assert (other["user"], other["hostname"]) == ("someone-else", "elsewhere.example.com")

    assert not configuration.exclude_hosts(), "the stack still has hosts"
    assert HostsFile("bert", "p", "google").remove()
    assert options(configuration, "bert-1")["user"] == "someone-else"
    assert configuration.exclude_hosts()
    assert configuration.path.read_bytes() == MINE


@pytest.mark.parametrize(
    ("version", "absent"),
    [
        ("OpenSSH_7.4p1, OpenSSL 1.0.2k", {"remotecommand", "knownhostscommand", "sessiontype"}),
        ("OpenSSH_8.2p1 Ubuntu-4ubuntu0.11", {"knownhostscommand", "sessiontype"}),
        ("OpenSSH_8.6p1, LibreSSL 3.3.6", {"sessiontype", "stdinnull", "forkafterauthentication"}),
        ("OpenSSH_10.0p2", set()),
        ("something else", set()),
    ],
)
def test_old_ssh_gets_no_options_that_it_rejects_for_all_hosts(
    version: str, absent: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openssh.com/releasenotes.html: RemoteCommand is new in 7.6, KnownHostsCommand in 8.5,
    SessionType, StdinNull and ForkAfterAuthentication in 8.7."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    names = {line.split()[0].lower() for line in str(host("bert-0", tmp_path)).splitlines()[1:]}
    newer = {"remotecommand", "knownhostscommand", "sessiontype", "stdinnull"}
    newer.add("forkafterauthentication")
    assert not names & absent
    assert absent or newer <= names
    assert {"proxycommand", "stricthostkeychecking"} <= names


def test_stacks_of_one_name_do_not_remove_each_others_hosts(
    configuration: UserConfiguration, tmp_path: Path
) -> None:
    first, second = HostsFile("bert", "p", "google"), HostsFile("bert", "q", "google")
    first.write([host("bert-0", tmp_path)])
    assert "project p" in second.other_stack
    assert not second.remove()
    second.write([host("bert-0", tmp_path)])
    assert not first.remove()
    assert second.remove()


def test_link_to_dotfiles_stays_a_link(configuration: UserConfiguration, tmp_path: Path) -> None:
    dotfile = tmp_path / "dotfiles" / "config"
    dotfile.parent.mkdir()
    dotfile.write_bytes(MINE)
    dotfile.chmod(0o640)
    configuration.path.parent.mkdir(parents=True)
    configuration.path.symlink_to(dotfile)
    configuration.include_hosts()
    assert configuration.path.readlink() == dotfile
    assert dotfile.read_bytes() == configuration.line.encode() + b"\n\n" + MINE
    assert dotfile.stat().st_mode & 0o777 == 0o640


def test_read_only_configuration_is_left_alone(configuration: UserConfiguration) -> None:
    configuration.path.parent.mkdir(parents=True)
    configuration.path.write_bytes(MINE)
    configuration.path.chmod(0o444)
    with pytest.raises(Usage, match="Read-only") as caught:
        configuration.include_hosts()
    assert configuration.path.read_bytes() == MINE
    assert configuration.line in caught.value.diagnostics[0].hint, "to be added by hand"


def test_new_configuration_is_private(configuration: UserConfiguration) -> None:
    configuration.include_hosts()
    assert configuration.path.parent.stat().st_mode & 0o777 == 0o700
    assert configuration.path.stat().st_mode & 0o777 == 0o600


# A path, an address that the cloud reports, and a key that a machine reports.
HOSTILE = st.text(
    st.sampled_from("ab/.% '\"\\$`{}#*?!=,;~\n\r\t\x85\u2028é"), min_size=1, max_size=12
)
COMMAND = "x\n    ProxyCommand touch /tmp/x\nHost *\n    ProxyCommand touch /tmp/y"


@given(path=HOSTILE, host=HOSTILE | st.just("192.0.2.7"), key=HOSTILE)
@settings(max_examples=40)
@example(path=COMMAND, host="h", key="k")
@example(path="a", host=COMMAND, key="k")
@example(path="a", host="h", key=COMMAND)
@example(path='a"', host="h", key="k")
@example(path="a b'c", host="h%d", key="k")
def test_ssh_reads_back_each_value_or_it_is_refused(path: str, host: str, key: str) -> None:
    """The ssh program reads what was written: the values of this host, and nothing for others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        proxy = ("env", f"A={path}", path)
        address = Address(host, 22, "ann", (f"ssh-ed25519 {key}",))
        known_hosts = folder / "known"
        written = Host("bert-0", address, folder / f"k{path}", known_hosts, proxy)
        text = folder / "config"
        try:
            text.write_text(f"{written}", "utf-8")
            write_known_hosts(known_hosts, "bert-0", address.host_keys)
        except (Conflict, Usage):
            writable = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\\\"]*"
            is_address = re.fullmatch(r"[\w:][\w:.%-]*", host, re.ASCII)
            assert not (is_address and re.fullmatch(writable, path + key)) or "${" in path
            return
        assert known_hosts.read_text("utf-8") == f"bert-0 ssh-ed25519 {key}\n"
        command = ["ssh", "-F", str(text), "-G"]
        done = subprocess.run([*command, "bert-0"], capture_output=True, check=True, timeout=60)
        read = dict(line.partition(" ")[::2] for line in done.stdout.decode().split("\n"))
        assert read["identityfile"].replace("%%", "%") == str(folder / f"k{path}")  # expanded later
        assert shlex.split(read["proxycommand"].replace("%%", "%")) == [*proxy]
        assert read["user"] == "ann"
        other = subprocess.run([*command, "other"], capture_output=True, check=True, timeout=60)
        assert b"proxycommand" not in other.stdout
