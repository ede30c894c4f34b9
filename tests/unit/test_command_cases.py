"""The cases of commands: `command_cases.toml`, whose head describes its keys."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tpuctl.cli.main import run

LISTED = tomllib.loads(Path(__file__).with_name("command_cases.toml").read_text("utf-8"))
TEXTS: dict[str, str] = LISTED["texts"]


def parts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def check_step(step: dict[str, Any], out: str, err: str) -> None:
    for text, part in ((out, step.get("out", [])), (err, step.get("err", []))):
        assert text == "" or part != ""
        assert [word for word in parts(part) if word not in text] == []
    assert out.startswith(step.get("begins", ""))
    assert err.startswith(step.get("err_begins", ""))
    assert "lines" not in step or len(out.splitlines()) == step["lines"]
    assert "once" not in step or out.count(step["once"]) == 1
    assert not [word for word in ("Traceback", *parts(step.get("not", []))) if word in out + err]


@pytest.mark.parametrize("case", LISTED["case"], ids=lambda case: case["why"])
def test_commands(case: dict[str, Any], empty_folder: Path, capsys: Any) -> None:
    for name, text in case.get("files", {}).items():
        (empty_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (empty_folder / name).write_text(TEXTS.get(text, text), "utf-8")
    for name, target in case.get("links", {}).items():
        (empty_folder / name).symlink_to(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(empty_folder / case.get("folder", ""))
        for name, value in case.get("env", {}).items():
            patch.setenv(name, value)
        for command in case.get("commands", [""]):
            for step in case["steps"]:
                words = shlex.split(step["run"].replace("COMMAND", command))
                assert (step["run"], run(words)) == (step["run"], step.get("code", 0))
                check_step(step, *capsys.readouterr())
    if "left" in case:
        left = {
            path.relative_to(empty_folder).as_posix(): path.read_text() if path.is_file() else None
            for path in empty_folder.rglob("*")
        }
        assert left == {name: TEXTS.get(text, text) for name, text in case["left"].items()}
