"""The rules about traced code handle any Python file."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import pytest

from tests.support.rule_checker import findings_of
from tpuctl.preflight.analysis.program.source import load
from tpuctl.preflight.findings import Target

LIBRARY = Path(sysconfig.get_path("stdlib"))
CODES = ("TPU0", "TPU1", "TPU2")
ODD = """
import tensorflow as tf
import tensorflow.keras as keras
from nowhere import *

@tf.function
def step(*values, key=None, **named):
    global kept
    a, *b = values
    (c := a)[0], d.e, f[1:2, ::3] = a, b, c
    match a:
        case [1, *rest]:
            return step(*values, **named)
        case {"x": y, **others} if y > 1:
            pass
    try:
        del c
    except* ValueError as error:
        raise RuntimeError from error
    async def inner():
        async with a as b, c:
            async for d in b:
                yield await d
    with tf.GradientTape() as tape, open(""):
        lambda: (yield)
    return [x async for x in a if x for y in x], {**named}, f"{a!r:>{b}}", a if b else (c, *b), ...

class Loop(Loop):
    call = step
    def call(self): return self.call()(self)(self.call)
class One(Two): pass
class Two(One):
    def call(x=1, /, *, y=step(1)): return -x @ ~y ** (not x)
step = tf.function(step)
step = tf.function()
tf.function()(1)()
tf.boolean_mask(); tf.where(); tf.range(); tf.unique(*a, **b)
keras.layers.Lambda(lambda: 0)
model.compile(loss={"a": step, **b}, metrics=[[step]])
strategy.run(); strategy.run(step, args=1); data.batch(); data.batch(*a)
"""


def look(path: Path, target: Target) -> None:
    project = load(path, path.parent)
    for name in [module for module in project.modules if module != "__main__"]:
        del project.modules[name]
    for finding in findings_of(project, target, *CODES) if project.modules else ():
        assert finding.line > 0
        assert finding.message


def as_traced(text: str) -> str:
    """The same file with all of its functions compiled by XLA."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.append(ast.parse("tensorflow.function").body[0].value)  # type: ignore[attr-defined]
    return "import tensorflow\n" + ast.unparse(tree)


def test_unusual_constructs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ODD, "utf-8")
    assert not load(script).unreadable
    look(script, Target("vm", "2.18.0"))


def check_files(files: list[Path], folder: Path) -> None:
    for number, path in enumerate(files):
        try:
            text = as_traced(path.read_text("utf-8"))
        except (SyntaxError, ValueError, RecursionError):
            continue  # invalid Python, as in some test files of the library
        script = folder / f"file_{number}.py"
        script.write_text(text, "utf-8")
        look(script, Target("vm", "2.18.0"))


def test_sample_of_standard_library(tmp_path: Path) -> None:
    files = sorted(LIBRARY.glob("*.py"))
    check_files(random.sample(files, 4), tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_large_sample_of_library_and_installed_packages(tmp_path: Path) -> None:
    check_files(random.sample(sorted(LIBRARY.rglob("*.py")), 120), tmp_path)
