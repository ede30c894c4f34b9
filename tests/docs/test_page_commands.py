"""Every console block on every page is run in a shell, or states what it requires."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.docs.page_blocks import NEEDS, ROOT, Block, blocks, matches_output, pages
from tests.docs.shell_session import Session
from tests.support.command_lines import parse
from tests.support.forked_cli import forked_tpuctl
from tpuctl.local_cloud import server_process

pytestmark = pytest.mark.long

# Run by `make test`. Other pages, and all blocks that need TensorFlow, are run by `make soak`.
FAST_PAGES = {
    "docs/guides/before-you-pay.md",
    "docs/index.md",
    "docs/local-cloud.md",
}
NEW_PROJECT = "my-project"
GENERATED = ROOT / "docs" / "reference"
HANDWRITTEN_PAGES = [page for page in pages() if GENERATED not in page.parents]
CONSOLE_BLOCKS = [
    block for page in HANDWRITTEN_PAGES for block in blocks(page) if block.language == "console"
]
# Translations have the same blocks: test_translations.py.
TESTED_PAGES = {
    block.page
    for block in CONSOLE_BLOCKS
    if block.needs in ("", "tensorflow") and ".ko." not in block.where
}
TENSORFLOW_PAGES = {
    block.page
    for block in CONSOLE_BLOCKS
    if block.page in TESTED_PAGES and block.needs == "tensorflow"
}


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def tpuctl_lines(command: str) -> Iterator[list[str]]:
    """The arguments of each tpuctl command in a shell command line."""
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


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_commands_and_options_exist(page: Path) -> None:
    for block in blocks(page):
        for command in block.commands if block.language == "console" else ():
            for words in tpuctl_lines(command.text):
                try:
                    parse(words)
                except typer.Exit:  # --version and --help
                    pass
                except typer.TyperException as error:
                    pytest.fail(f"{block.where}: {command.text}\n{error.format_message()}")


def test_skipped_blocks_have_reason(capsys: pytest.CaptureFixture[str]) -> None:
    needs = Counter(block.needs for block in CONSOLE_BLOCKS)
    assert set(needs) <= {"", *NEEDS}
    run = needs.pop("") + needs["tensorflow"]
    with capsys.disabled():
        quick = sum(
            block.needs == "" and page_name(block.page) in FAST_PAGES for block in CONSOLE_BLOCKS
        )
        print(
            f"\n{len(CONSOLE_BLOCKS)} blocks of commands: {quick} run, {run - quick} by `make soak`"
        )
        for need, number in needs.most_common():
            print(f"  {number} need {NEEDS[need]}")
    assert run > len(CONSOLE_BLOCKS) / 2, needs
    assert {page_name(block.page) for block in CONSOLE_BLOCKS} >= FAST_PAGES


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new local cloud with the project that pages mention. Logs do not begin with a note where
    this computer lacks the Python of an image."""
    monkeypatch.setenv("TPUCTL_LOCAL_NOTES", "off")
    home = tmp_path / "local"
    cloud = server_process.start(home, pace="instant")
    server_process.request(cloud, "POST", "/v3/projects", {"projectId": NEW_PROJECT})
    billing = {"billingAccountName": "billingAccounts/010CA1-010CA1-010CA1"}
    server_process.request(cloud, "PUT", f"/v1/projects/{NEW_PROJECT}/billingInfo", billing)
    yield home
    server_process.stop(home)


@pytest.mark.parametrize("name", sorted(FAST_PAGES & set(map(page_name, TESTED_PAGES))))
def test_commands_of_fast_pages(name: str, home: Path, tmp_path: Path) -> None:
    run_page(ROOT / name, home, tmp_path, is_soak=False)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "name",
    sorted(set(map(page_name, TESTED_PAGES)) - FAST_PAGES | set(map(page_name, TENSORFLOW_PAGES))),
)
def test_commands_of_pages(name: str, home: Path, tmp_path: Path) -> None:
    run_page(ROOT / name, home, tmp_path, is_soak=True)


def run_page(page: Path, home: Path, tmp_path: Path, *, is_soak: bool) -> None:
    """Create a page's files and run its commands in a new folder.

    The demo runs most of the tutorial's commands without forks, as users do.
    """
    environment = {
        "TPUCTL_CLOUD": "local",
        "TPUCTL_LOCAL_HOME": str(home),
        "TPUCTL_CONFIG_HOME": str(tmp_path / "config"),
        "TPUCTL_YES": "1",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # images
        # Interpreters for machines.
        "PYENV_ROOT": os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")),
        "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME", str(Path.home() / ".local" / "share")),
    }
    folder = tmp_path / page.stem
    with Session(folder, Path(forked_tpuctl()).parent, environment) as session:
        for block in blocks(page):
            if block.file:
                target = folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, "utf-8")
            elif block.language == "console" and (
                not block.needs or (is_soak and block.needs == "tensorflow")
            ):
                run_block(session, block)


def run_block(session: Session, block: Block) -> None:
    commands = block.commands
    for number, command in enumerate(commands):
        result = session.run(command.text, in_terminal=block.is_terminal_output)
        expected = block.exit_code if number == len(commands) - 1 else 0
        transcript = f"{block.where}: $ {command.text}\n{result.out}{result.err}"
        assert result.code == expected, f"exit code {result.code}, {transcript}"
        assert "This is a bug in tpuctl" not in result.err, transcript
        matched = any(
            matches_output(command.expected, stream)
            for stream in (result.out, result.err, result.both)
        )
        assert not command.expected or matched, f"different output, {transcript}"
