"""Hosts and the Include line in ssh's configuration, as the ssh program reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpuctl.errors import Usage
from tpuctl.remote.openssh import Host, HostsFile, UserConfiguration
from tpuctl.remote.ssh import Address

ADDRESS = Address("192.0.2.7", 2222, "ann", ("ssh-ed25519 AAAA",))
MINE = (
    b"# Mine: \xff\nHost *\n    User someone-else\n    HostName %h.example.com\n    ProxyJump x\n"
)


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserConfiguration:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "100% [my] $settings"))
    return UserConfiguration()


def host(name: str, folder: Path) -> Host:
    command = ("env", "A=b c", "proxy 100%", "0")
    return Host(name, ADDRESS, folder / "a key", folder / "hosts 50%", command)


def options(configuration: UserConfiguration, name: str) -> dict[str, str]:
    command = ["ssh", "-F", str(configuration.path), "-G", name]
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
    other = options(configuration, "elsewhere")
    assert (other["user"], other["hostname"]) == ("someone-else", "elsewhere.example.com")

    assert not configuration.exclude_hosts(), "the stack still has hosts"
    assert HostsFile("bert", "p", "google").remove()
    assert options(configuration, "bert-1")["user"] == "someone-else"
    assert configuration.exclude_hosts()
    assert configuration.path.read_bytes() == MINE


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
