"""Completions, as offered to shells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.completions import JOBS, STACK, enter_stack_folder, learn
from tpuctl.catalog import accelerator_types, zones
from tpuctl.cli import tab_completion
from tpuctl.cli.completion import name_history
from tpuctl.cli.help.commands import COMMANDS


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_stack_folder(tmp_path, monkeypatch)


def words(line: str) -> list[str]:
    *before, incomplete = line.split(" ")
    return [candidate.word for candidate in tab_completion.candidates_for(before, incomplete)]


def test_commands_and_options_are_completed() -> None:
    assert words("") == list(COMMANDS)
    assert words("--json sta") == ["status"]
    assert words("local st") == ["status"]
    assert words("local fault a") == ["add"]
    assert words("help local fa") == ["fault"]
    assert words("init ke") == ["keras"]
    assert words("logs --ta") == ["--tail"]
    assert words("logs --js") == ["--json"]
    assert words("logs --json --js") == []
    assert words("run --secret A --sec") == ["--secret"], "may be repeated"
    assert "--follow" in words("logs --tail 3 --")
    assert words("--clo") == ["--cloud"]


def test_option_values_are_completed_after_global_options() -> None:
    assert words("--cloud ") == ["google", "local"]
    assert words("types --cloud l") == ["local"]
    assert words("--cloud=l") == ["--cloud=local"]
    assert words("rehearse --type v5litepod-6") == ["v5litepod-64"]
    assert words("--cloud local rehearse --json --type v5litepod-6") == ["v5litepod-64"]
    assert words("forward --worker ") == ["0", "1", "2", "3"], "v3-32 has four"
    # Types are completed by the name that was begun.
    assert words("types v5e-6") == ["v5e-64"]
    assert words("init --type trillium-12") == ["trillium-128"]
    assert "v5litepod-8" in words("types v5")


def test_short_stack_file_tells_project_and_workers(tmp_path: Path) -> None:
    stack_file = Path("tpuctl.yaml")
    stack_file.write_text("stack: short\nproject: 'my-short-1'\ntpu: v5e-16\n", "utf-8")
    assert words("forward --worker ") == ["0", "1", "2", "3"]
    assert "my-short-1" in words("status --project ")


def test_zones_are_limited_to_given_type() -> None:
    accelerator = accelerator_types()["v3-8"]
    assert set(words("types --zone ")) == set(zones())
    assert set(words("prices v3-8 --zone ")) == {*accelerator.zones}
    assert set(words("init --type V3-8 --zone ")) == {*accelerator.zones}


def test_remembered_jobs_are_offered_newest_first() -> None:
    assert words("logs ") == []
    learn(JOBS[0])
    learn(JOBS[1], JOBS[0])
    assert words("logs ") == [JOBS[1], JOBS[0]]
    assert words("stop 20261121") == [JOBS[0]]
    assert words("logs am") == ["amber"], "the last word of an ID suffices"
    assert words("--cloud local logs ") == [], "another cloud has others"


def test_jobs_of_other_stacks_are_not_offered() -> None:
    learn(JOBS[0], text=STACK.replace("bert", "gpt"))
    assert words("logs ") == []
    assert words("down --stack g") == ["gpt"]


def test_stacks_of_nearby_files_and_history_are_offered() -> None:
    other = Path("other")
    other.mkdir()
    (other / "tpuctl.yaml").write_text(
        "# stack: not-this\nstack: 'keras'\nproject:\n  create: true\n  id: elsewhere\n", "utf-8"
    )
    learn(JOBS[0], text=STACK.replace("bert", "gpt"))
    assert set(words("status --stack ")) == {"bert", "keras", "gpt"}
    assert words("status --stack keras --project ") == ["elsewhere"]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"[]", b'{"version": 1}', b"null"])
def test_damaged_history_is_ignored(damage: bytes) -> None:
    path = name_history.history_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    Path("tpuctl.yaml").write_bytes(b"\xff\xfe: [")
    assert words("logs ") == []
    assert words("status --stack ") == []
    learn(JOBS[0])
    Path("tpuctl.yaml").write_text(STACK, "utf-8")
    assert words("logs ") == [JOBS[0]]


def test_unwritable_history_is_ignored() -> None:
    name_history.history_file().parent.parent.mkdir(parents=True)
    name_history.history_file().parent.write_text("", "utf-8")
    learn(JOBS[0])
    assert words("logs ") == []


@pytest.mark.parametrize(
    "line", ["nonesuch ", "logs --nonesuch ", "run a.py -- --z", "local nonesuch x", "cp 0:", "'"]
)
def test_no_candidates_print_nothing(line: str) -> None:
    assert words(line) == []
