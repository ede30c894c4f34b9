"""`tpuctl check` in a terminal, and what it imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.commands import succeed
from tests.support.terminal import Terminal
from tests.unit.test_cli_check import BROKEN, COSTLY, FIXED, RISKY, write


def test_caret_marks_column_on_terminal(here: Path) -> None:
    text = "import tensorflow as tf\n\n\ndef f():\n\t한국어 = tf.data.Dataset.range(9).batch(4)\n"
    write(here, train=text)
    with Terminal(here, "check", "train.py", "--no-color") as terminal:
        assert terminal.end() == 0
        lines = terminal.output.splitlines()
    assert "\x1b" not in terminal.output
    place = next(number for number, line in enumerate(lines) if line.strip().endswith("^"))
    source, caret = lines[place - 1], lines[place]
    assert source.endswith("| 한국어 = tf.data.Dataset.range(9).batch(4)")
    head = next(line for line in lines if line.startswith("train.py:5:"))
    column = int(head.split(" ")[0].split(":")[2])
    before = text.splitlines()[4][1 : column - 1]
    # Each of the three letters before it takes two columns.
    assert caret.index("^") == source.index("한") + len(before) + 3


@pytest.mark.parametrize("name", ["", "NO_COLOR", "TERM"])
def test_terminal_output_has_colors(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write(here, train=BROKEN)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if name:
        monkeypatch.setenv(name, "dumb")
    with Terminal(here, "check", "train.py") as terminal:
        assert terminal.end() == 1
        assert ("\x1b[" in terminal.output) is (name == "")


def test_control_characters_in_source_are_escaped(here: Path) -> None:
    (here / "train.py").write_bytes(b"if x  # \x1b[31m\x07\n    pass\n")
    with Terminal(here, "check", "train.py", "--no-color") as terminal:
        assert terminal.end() == 1
        assert "\x1b" not in terminal.output
        assert "\x07" not in terminal.output


@pytest.mark.parametrize("answer", ["y", "n"])
def test_fix_shows_diff_and_asks(here: Path, answer: str) -> None:
    write(here, train=RISKY)
    with Terminal(here, "check", "train.py", "--fix") as terminal:
        terminal.wait_for("Change 1 file?")
        assert "+@tf.function(reduce_retracing=True)" in terminal.output
        assert (here / "train.py").read_text("utf-8") == RISKY
        terminal.type(f"{answer}\n")
        assert terminal.end() == (0 if answer == "y" else 130)
    assert (here / "train.py").read_text("utf-8") == (FIXED if answer == "y" else RISKY)


def test_check_imports_no_heavy_modules(here: Path) -> None:
    write(here, train=COSTLY)
    program = (
        "import sys\n"
        "from tpuctl.cli.main import run\n"
        "code = run(['check', 'train.py'])\n"
        "print(' '.join(sorted(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = succeed([sys.executable, "-c", program])
    loaded = set(done.stderr.splitlines()[-1].split())
    heavy = {"tensorflow", "keras", "numpy", "google", "grpc", "asyncssh", "aiohttp"}
    heavy |= {"yaml", "requests", "cryptography", "rich.console", "asyncio"}
    heavy |= {"tpuctl.model.stack.schema", "tpuctl.api"}  # no stack file exists
    heavy |= {"pydantic", "pathspec", "tpuctl.model.events"}  # nor an ignore file, nor a step
    heavy |= {"tpuctl.catalog.compute", "tpuctl.catalog.prices"}
    assert not heavy & loaded
    above = ("tpuctl.flows", "tpuctl.emulator", "tpuctl.local_cloud")
    assert not {name for name in loaded if name.startswith(above)}
