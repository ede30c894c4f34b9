"""The generated reference is up to date."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

from pydantic import BaseModel

import tpuctl
from tpuctl.model.stack.schema import StackFile
from tpuctl.model.stack.stack import load_stack

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


def test_stack_file_page_begins_with_valid_example(tmp_path: Path) -> None:
    page = generator().stack_page()
    before, _, rest = page.partition("```yaml\n")
    assert "| key |" not in before
    file = tmp_path / "tpuctl.yaml"
    file.write_text(rest.partition("```")[0], "utf-8")
    load_stack(file).require_valid()


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """All keys of a stack file that have a value, including those in lists."""
    for name, field in model.model_fields.items():
        inside = list(sections(field.annotation, f"{above}{name}"))
        if not inside:
            yield f"{above}{name}"
        for section, path in inside:
            yield from keys(section, f"{path}.")


def sections(annotation: Any, path: str) -> Iterator[tuple[type[BaseModel], str]]:
    """The models in a type, each with its path, such as `tpu.data_disks[]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, path
    in_list = get_origin(annotation) in (tuple, list)
    for part in get_args(annotation):
        yield from sections(part, f"{path}[]" if in_list else path)


def test_stack_file_page_has_every_key() -> None:
    page = (DOCS / "reference" / "stack-file.md").read_text("utf-8")
    expected_keys = [*keys(StackFile)]
    assert {"tpu.data_disks[].size_gb", "controller.image", "stack"} <= {*expected_keys}
    assert not [key for key in expected_keys if f"| `{key}` |" not in page]


def test_every_key_of_stack_file_is_read() -> None:
    """A key that nothing reads would be accepted, and ignored."""
    folder = Path(tpuctl.__file__).parent
    sources = (path for path in folder.rglob("*.py") if path != folder / "model/stack/schema.py")
    words = {word for path in sources for word in re.findall(r"\.(\w+)", path.read_text("utf-8"))}
    unread = [
        key for key in keys(StackFile) if key.rpartition(".")[2].removesuffix("[]") not in words
    ]
    assert not unread, f"tpuctl/model/stack/schema.py: no code of tpuctl reads {unread}"


def test_every_command_has_an_example() -> None:
    page = (DOCS / "reference" / "commands.md").read_text("utf-8")
    sections = page.split("\n## ")[1:]
    assert len(sections) > 10
    for section in sections:
        title = section.splitlines()[0]
        assert f"$ {title}" in section, f"{title} has no example"
