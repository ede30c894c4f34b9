"""The generated reference is what the code says today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[2] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_is_current() -> None:
    for path, text in generator().pages().items():
        assert path.read_text("utf-8") == text, f"{path.name} is out of date: make docs"


def test_every_command_has_an_example() -> None:
    page = (DOCS / "reference" / "commands.md").read_text("utf-8")
    sections = page.split("\n## ")[1:]
    assert len(sections) > 10
    for section in sections:
        title = section.splitlines()[0]
        assert f"$ {title}" in section, f"{title} has no example"
