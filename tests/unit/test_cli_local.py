"""`local set` and `local fault` without a running local cloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cli.main import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    return tmp_path / "local"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodez", "denied"], "nodes"),
        (["nodes"], "nodes allowed|denied"),
        (["nodes", "denied", "at-once"], "nodes allowed|denied"),
        (["quota", "TPUV3", "us-east5-a"], "quota LIMIT ZONE NUMBER|unlimited"),
        (["quota", "TPUV3", "us-east5-a", "four"], "four is neither a whole number"),
        (["quota", "TPUV3", "us-east5-a", "1.5"], "1.5 is neither a whole number"),
        (["policy", "compute.vmExternalIpAccess", "yes"], "yes is neither on nor off"),
        (["denied-permission", "tpu.nodes.create"], "denied-permission PERMISSION on|off"),
        (["address"], "address ADDRESS"),
        (["devices", "few"], "few is neither a whole number nor all"),
    ],
)
def test_malformed_setting_does_not_start_local_cloud(
    capsys: pytest.CaptureFixture[str], home: Path, words: list[str], message: str
) -> None:
    assert run(["local", "set", *words]) == 2
    assert message in capsys.readouterr().err
    assert not home.exists()


@pytest.mark.parametrize(
    "words",
    [["set"], ["fault", "list"], ["fault", "remove", "--all"], ["fault", "release", "hold-1"]],
)
def test_read_only_commands_do_not_start_local_cloud(
    capsys: pytest.CaptureFixture[str], home: Path, words: list[str]
) -> None:
    assert run(["local", *words]) == 1
    assert "tpuctl local up" in capsys.readouterr().err
    assert not home.exists()


@pytest.mark.parametrize("words", [[], ["lost-1", "--all"]])
def test_fault_remove_requires_id_or_all(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(["local", "fault", "remove", *words]) == 2
    assert "--all" in capsys.readouterr().err
