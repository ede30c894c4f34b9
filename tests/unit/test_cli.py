"""The command line without any cloud: help, options, envelopes and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.cli.app import hoist, run

HEAVY = ("google", "grpc", "asyncssh", "aiohttp", "yaml", "requests", "cryptography")
MINIMAL = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE", "TPUCTL_YES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["local", "--help"]])
def test_help_imports_no_library_of_google(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from tpuctl.cli.app import run\n"
        f"code = run({arguments!r})\n"
        "print(' '.join(sorted(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Usage" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert loaded.isdisjoint(HEAVY)


def test_global_options_may_stand_anywhere_before_the_dashes() -> None:
    assert hoist(["up", "--json", "--cloud", "local", "-y"]) == [
        "--json",
        "--cloud",
        "local",
        "-y",
        "up",
    ]
    assert hoist(["run", "job.py", "--cloud=local", "--", "--json", "--cloud", "x"]) == [
        "--cloud=local",
        "run",
        "job.py",
        "--",
        "--json",
        "--cloud",
        "x",
    ]


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    code = run([*arguments, "--json"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    assert set(answer) == {"version", "command", "status", "exit_code", "data", "diagnostics"}
    return answer


def test_success_in_an_envelope(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(MINIMAL, "utf-8")
    answer = envelope(capsys, "check")
    assert (answer["command"], answer["status"], answer["exit_code"]) == ("check", "ok", 0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check"], 2),  # no stack file
        (["frobnicate"], 2),
        (["check", "--bogus"], 2),
        (["types", "--zone", "mars-north1-a"], 2),
        (["prices", "v3-9"], 2),
        (["init", "nonesuch", "--project", "my-project"], 2),
    ],
)
def test_failure_in_an_envelope(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    answer = envelope(capsys, *arguments)
    assert (answer["status"], answer["exit_code"]) == ("failed", code)
    assert len(answer["diagnostics"]) == 1  # type: ignore[arg-type]


def test_a_failure_is_told_on_stderr_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prices", "v3-9"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "v3-8" in captured.err
    assert "Traceback" not in captured.err


def test_nothing_prompts_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["local", "reset"]) == 2
    assert "--yes" in capsys.readouterr().err


def test_a_script_that_is_missing_or_broken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tpuctl.yaml").write_text(MINIMAL, "utf-8")
    (tmp_path / "broken.py").write_text("x = 1\nif x\n    pass\n", "utf-8")
    assert run(["check", "absent.py"]) == 2
    assert "absent.py" in capsys.readouterr().err
    assert run(["check", "broken.py"]) == 65
    assert "broken.py:2" in capsys.readouterr().err


def test_init_never_overwrites(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["init", "--project", "my-project", "--name", "bert"]) == 0
    assert run(["check"]) == 0
    written = (tmp_path / "tpuctl.yaml").read_text("utf-8")
    assert run(["init", "--project", "other-project"]) == 1
    assert (tmp_path / "tpuctl.yaml").read_text("utf-8") == written
    assert "tpuctl.yaml exists" in capsys.readouterr().err


def test_the_reader_may_go_away() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tpuctl types | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("type")
