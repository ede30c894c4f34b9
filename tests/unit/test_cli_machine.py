"""Invalid commands for machines are rejected without a query to the cloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cli.main import run

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ssh", "--all-workers"), "--all-workers requires a command"),
        (("ssh", "1", "--all-workers", "--", "true"), "1 selects one worker"),
        (("ssh", "--all-workers", "1", "--", "true"), "1 selects one worker"),
        (("--json", "ssh"), "--json requires a command"),
        (("cp", "x", "y"), "source and target are both local"),
        (("cp", "0:x"), "pass a source and a target path"),
        (("cp", "--all-workers", "x", "0:"), "--all-workers selects all"),
        (("forward", "6006", "--worker", "nine"), "nine"),
        (("forward", "70000"), "70000"),
        (("forward", "6006:0"), "6006:0"),
        (("forward", "6006:x"), "6006:x"),
        (("forward", "0:6006"), "LOCALPORT:PORT"),
        (("forward", "8080:elsewhere:6006"), "LOCALPORT:PORT"),
        (("ssh-config", "--print", "--remove"), "--print writes nothing"),
        (("notebook", "nowhere"), "nowhere is not a folder"),
        (("notebook", "--port", "70000"), "--port"),
        (("status", "--watch", "--interval", "0.1"), "--interval"),
        (("profile", "soon"), "soon is not a duration"),
        (("profile", "30m"), "30m is too long for a profile"),
    ],
)
def test_invalid_machine_arguments_are_explained(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tpuctl.yaml").write_text(STACK, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert says in out + err
    assert "Bug in the local cloud" not in out + err
