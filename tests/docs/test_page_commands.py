"""Every block of commands on every page is run in a shell, or says what it requires."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.docs.fast_command import fast_programs, real_programs
from tests.docs.page_blocks import NEEDS, ROOT, Block, answers, blocks, pages
from tests.docs.shell_session import Session
from tpuctl.cli.app import command_line
from tpuctl.cli.arguments import hoist
from tpuctl.cli.state import State
from tpuctl.emulator.client import server_process

# Run by every suite. The others take longer, and belong to the soak, as do all blocks that need
# TensorFlow.
QUICK = {
    "docs/guides/before-you-pay.md",
    "docs/guides/get-a-tpu.md",
    "docs/index.md",
    "docs/local-cloud.md",
}
REAL = {"docs/tutorial.md"}  # typed as users have it, each command a process of its own
NEW_PROJECT = "my-project"
GENERATED = ROOT / "docs" / "reference"
WRITTEN = [page for page in pages() if GENERATED not in page.parents]
CONSOLE = [block for page in WRITTEN for block in blocks(page) if block.language == "console"]
# Translations have the same blocks: test_translations.py.
RUN = {
    block.page
    for block in CONSOLE
    if block.needs in ("", "tensorflow") and ".ko." not in block.where
}
LONG = {block.page for block in CONSOLE if block.page in RUN and block.needs == "tensorflow"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# A command line as the shell would part it: what tpuctl is given, up to a pipe or the next command.
def tpuctl_lines(command: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>()"):
            if words[:1] == ["tpuctl"]:
                yield words[1:]
            words = []
        elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
            words.append(word)


def parse(words: list[str]) -> None:
    """Raises what our command line raises for words that it does not know."""
    command: Any = command_line()
    context = command.make_context("tpuctl", hoist(words), obj=State())
    while hasattr(command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    for block in blocks(page):
        for command in block.commands if block.language == "console" else ():
            for words in tpuctl_lines(command.text):
                try:
                    parse(words)
                except typer.Exit:  # --version and --help end it
                    pass
                except typer.TyperException as error:
                    pytest.fail(f"{block.where}: {command.text}\n{error.format_message()}")


def test_skipped_blocks_have_reason(capsys: pytest.CaptureFixture[str]) -> None:
    needs = Counter(block.needs for block in CONSOLE)
    assert set(needs) <= {"", *NEEDS}
    run = needs.pop("") + needs["tensorflow"]
    with capsys.disabled():
        quick = sum(block.needs == "" and name_of(block.page) in QUICK for block in CONSOLE)
        print(f"\n{len(CONSOLE)} blocks of commands: {quick} run, {run - quick} by the soak")
        for need, number in needs.most_common():
            print(f"  {number} need {NEEDS[need]}")
    assert run > len(CONSOLE) / 2, needs
    assert {name_of(block.page) for block in CONSOLE} >= QUICK


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A fresh local cloud, in which there is the project that pages speak of."""
    home = tmp_path / "local"
    cloud = server_process.start(home, pace="instant")
    server_process.request(cloud, "POST", "/v3/projects", {"projectId": NEW_PROJECT})
    billing = {"billingAccountName": "billingAccounts/010CA1-010CA1-010CA1"}
    server_process.request(cloud, "PUT", f"/v1/projects/{NEW_PROJECT}/billingInfo", billing)
    yield home
    server_process.stop(home)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with fast_programs(tmp_path_factory.mktemp("programs") / "bin") as folder:
        yield folder


@pytest.mark.parametrize("name", sorted(QUICK & set(map(name_of, RUN))))
def test_commands_of_fast_pages(name: str, programs: Path, home: Path, tmp_path: Path) -> None:
    follow(ROOT / name, programs, home, tmp_path, is_soak=False)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", sorted(set(map(name_of, RUN)) - QUICK | set(map(name_of, LONG))))
def test_commands_of_pages(name: str, programs: Path, home: Path, tmp_path: Path) -> None:
    if name in REAL:
        with real_programs(tmp_path / "bin") as real:
            follow(ROOT / name, real, home, tmp_path, is_soak=True)
    else:
        follow(ROOT / name, programs, home, tmp_path, is_soak=True)


def follow(page: Path, programs: Path, home: Path, tmp_path: Path, *, is_soak: bool) -> None:
    """Do all that a page says, in a fresh folder."""
    environment = {
        "TPUCTL_CLOUD": "local",
        "TPUCTL_LOCAL_HOME": str(home),
        "TPUCTL_CONFIG_HOME": str(tmp_path / "config"),
        "TPUCTL_YES": "1",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # images
    }
    folder = tmp_path / page.stem
    with Session(folder, programs, environment) as session:
        for block in blocks(page):
            if block.file:
                target = folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, "utf-8")
            elif block.language == "console" and (
                not block.needs or (is_soak and block.needs == "tensorflow")
            ):
                follow_block(session, block)


def follow_block(session: Session, block: Block) -> None:
    commands = block.commands
    for number, command in enumerate(commands):
        answer = session.type(command.text, in_terminal=block.is_of_terminal)
        expected = block.exit_code if number == len(commands) - 1 else 0
        transcript = f"{block.where}: $ {command.text}\n{answer.out}{answer.err}"
        assert answer.code == expected, f"ended with {answer.code}, {transcript}"
        assert "This is a bug in tpuctl" not in answer.err, transcript
        matched = any(
            answers(command.expected, stream) for stream in (answer.out, answer.err, answer.both)
        )
        assert not command.expected or matched, f"does not answer so, {transcript}"
