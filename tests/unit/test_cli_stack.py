"""Options of stack commands: contradicting, incomplete and invalid ones are rejected by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cli.main import run

BOTH = ("--stack", "bert", "--project", "my-project")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE", "TPUCTL_YES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (BOTH[:2], "--project"),
        (BOTH[2:], "--stack"),
        (("--stack", "Bert", "--project", "my-project"), "--stack cannot be 'Bert'"),
        (("--stack", "bert", "--project", "x"), "--project cannot be 'x'"),
        (("--stack", "", "--project", "my-project"), "--stack"),
        (("--stack-file", "x.yaml", *BOTH), "--stack-file"),
        ((), "--stack and --project"),
        (("--stack-file", "absent.yaml"), "absent.yaml"),
    ],
)
@pytest.mark.parametrize("command", ["status", "down"])
def test_invalid_stack_options_are_rejected(
    capsys: pytest.CaptureFixture[str], command: str, arguments: tuple[str, ...], expected: str
) -> None:
    assert run([command, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--project"),
        (("--project", "x"), "--project cannot be 'x'"),
        (("--stack-file", "x.yaml", "--project", "my-project"), "--stack-file"),
    ],
)
def test_invalid_orphans_projects_are_rejected(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert run(["orphans", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


def test_stack_option_overrides_stack_file_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is set for all commands; options of one command take precedence."""
    monkeypatch.setenv("TPUCTL_STACK_FILE", "somewhere.yaml")
    assert run(["status", "--stack", "Bert", "--project", "my-project"]) == 2
    assert "--stack cannot be" in capsys.readouterr().err
