"""The page for coding agents."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_lines import parse
from tpuctl.cli.agents.skill import skill_page
from tpuctl.cli.app import command_line
from tpuctl.cli.help.commands import COMMANDS, EFFECTS, Effect
from tpuctl.cli.main import run

MAX_BYTES = 12_000  # a small part of a context window
EXIT_CODES = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


@pytest.fixture(scope="module")
def page() -> str:
    return skill_page(command_line())


def test_page_is_a_skill_of_limited_size_with_valid_commands(page: str) -> None:
    assert len(page.encode()) < MAX_BYTES
    _, front, text = page.split("---\n", 2)
    fields = yaml.safe_load(front)
    # https://agentskills.io/specification
    assert set(fields) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", fields["name"])
    assert 0 < len(fields["description"]) <= 1024
    assert text.lstrip().startswith("# tpuctl\n")
    documented = re.findall(r"^\| (\d+) \|", EXIT_CODES.read_text("utf-8"), re.M)
    assert len(documented) > 10
    assert re.findall(r"^- (\d+): \S.*\.$", page, re.M) == list(dict.fromkeys(documented))
    lines = re.findall(r"^\$ tpuctl ([^#\n]+)", page, re.M)
    assert len(lines) > 10
    for line in lines:
        parse(shlex.split(line))


@pytest.mark.parametrize("effect", Effect)
def test_commands_are_listed_by_effect(page: str, effect: Effect) -> None:
    section = page.partition(f"\nWhat {effect.value}:\n")[2].lstrip().partition("\n\n")[0]
    names = set(re.findall(r"^- `tpuctl ([^`]+)`: \S", section, re.M))
    assert names == {name for name, entry in COMMANDS.items() if entry.effect is effect} | {
        words for words, other in EFFECTS.items() if other is effect
    }
    for name, _, rest in (words.partition(" ") for words in names & EFFECTS.keys()):
        command: Any = command_line().get_command(None, name)
        options = {option for parameter in command.params for option in parameter.opts}
        assert rest in options | set(getattr(command, "commands", ()))


def test_command_prints_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skill"]) == 0
    assert capsys.readouterr().out == page + "\n"
