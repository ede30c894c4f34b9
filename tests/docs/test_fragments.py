"""File contents on pages are valid: stack files load, Python compiles, JSON parses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.page_blocks import ROOT, Block, blocks, pages
from tpuctl.model.stack.schema import StackFile
from tpuctl.model.stack.stack import load_stack

RULES = ROOT / "docs" / "reference" / "rules.md"  # has bad examples, which have separate tests
BLOCKS = [block for page in pages() if page != RULES for block in blocks(page)]
MINIMAL_STACK: dict[str, Any] = {
    "stack": "shown",
    "project": {"id": "my-project"},
    "tpu": {"type": "v2-8"},
}


def blocks_in(language: str) -> list[Any]:
    return [pytest.param(block, id=block.where) for block in BLOCKS if block.language == language]


def fill_in(fragment: dict[str, Any], minimum: dict[str, Any]) -> dict[str, Any]:
    """Add the required keys to a part of a stack file."""
    return {
        **minimum,
        **{
            key: fill_in(value, minimum[key])
            if isinstance(value, dict) and isinstance(minimum.get(key), dict)
            else value
            for key, value in fragment.items()
        },
    }


def is_stack(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and set(value) <= set(StackFile.model_fields)


@pytest.mark.parametrize("block", blocks_in("yaml"))
def test_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    value = yaml.safe_load(block.text)
    assert value is not None
    if not is_stack(value):
        assert not isinstance(value, dict) or "tpu" not in value, f"{block.where}: unknown keys"
        return
    for name, text in files_of(block):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    path = tmp_path / "tpuctl.yaml"
    path.write_text(yaml.safe_dump(fill_in(value, MINIMAL_STACK)), "utf-8")
    assert load_stack(path).name


def files_of(block: Block) -> list[tuple[str, str]]:
    return [(other.file, other.text) for other in blocks(block.page) if other.file]


def test_stack_files_are_recognized() -> None:
    kinds = [is_stack(yaml.safe_load(block.text)) for block in BLOCKS if block.language == "yaml"]
    assert kinds.count(True) > 5
    assert not is_stack([{"run": "tpuctl check train.py"}])


@pytest.mark.parametrize("block", blocks_in("python"))
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.where, "exec", dont_inherit=True)


@pytest.mark.parametrize("block", blocks_in("json"))
def test_json_is_valid(block: Block) -> None:
    json.loads(block.text)


def test_pages_are_found() -> None:
    assert ROOT / "docs" / "tutorial.md" in pages()
