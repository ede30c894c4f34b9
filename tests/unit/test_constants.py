"""Constant values of expressions, read from sources that are never run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tpuctl.preflight.analysis.program.source import load
from tpuctl.preflight.analysis.values.constants import Constant, is_bucket, is_local
from tpuctl.preflight.analysis.values.host_code import HostCode

IMPORTS = """
import argparse
import glob
import os
import tempfile
from pathlib import Path

import tensorflow as tf
"""


def values_of(folder: Path, source: str, **others: str) -> list[Constant]:
    """The complete constant value of the argument of `ask(…)`."""
    script = folder / "train.py"
    script.write_text(IMPORTS + source, "utf-8")
    for name, text in others.items():
        (folder / f"{name}.py").write_text(IMPORTS + text, "utf-8")
    project = load(script)
    assert not project.unreadable
    for module in project:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ask":
                return list(HostCode.of(project).constants(module, node.args[0]))
    raise AssertionError("nothing asks")


def whole(*values: str | int | float | None) -> list[Constant]:
    return [Constant(value) for value in values]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("ask('data')", ["data"]),
        ("ask(128)", [128]),
        ("ask(-1)", [-1]),
        ("A = 'a'\nask(A)", ["a"]),
        ("A = B = 'a'\nask(B)", ["a"]),
        ("A, B = 'a', 'b'\nask(B)", ["b"]),
        ("A: int = 3\nask(A * 4 + 2)", [14]),
        ("ask(1024 // 3)", [341]),
        ("ask(2 ** 7)", [128]),
        ("ask('a' + 'b' + '/c')", ["ab/c"]),
        ("A = 'a'\nask(f'{A}/b/{7}')", ["a/b/7"]),
        ("ask(os.path.join('gs://b', 'c', 'd'))", ["gs://b/c/d"]),
        ("ask(os.path.join('a/', 'b'))", ["a/b"]),
        ("ask(os.path.join('a', '/b'))", ["/b"]),
        ("ask(os.path.join('a', 'gs://b/c'))", ["gs://b/c"]),
        ("ask(tf.io.gfile.join('gs://b', 'c'))", ["gs://b/c"]),
        ("ask(Path('a') / 'b' / 'c.txt')", ["a/b/c.txt"]),
        ("ask(str(Path('a').joinpath('b')))", ["a/b"]),
        ("ask(Path('a', 'b').as_posix())", ["a/b"]),
        ("ask(['a', 'b'])", ["a", "b"]),
        ("ask(['a'] + ['b'])", ["a", "b"]),
        ("A = ['a', 'b']\nask(A[-1])", ["b"]),
        ("A = {'x': ['a', 'b']}\nask(A['x'])", ["a", "b"]),
        ("for A, B in [('a', 1), ('b', 2)]:\n    ask(A)", ["a", "b"]),
        ("for A, B in zip(['x', 'y'], ['a', 'b']):\n    ask(B)", ["a", "b"]),
        ("ask('a' if input() else 'b')", ["a", "b"]),
        ("A = {'x': 'a', 'y': 'b'}\nask(A['y'])", ["b"]),
        ("A = {'x': 'a', 'y': 'b'}\nask(A.get('x'))", ["a"]),
        ("A = 1\nif input():\n    A = 2\nask(A)", [1, 2]),
        ("A = 'out'\ndef f():\n    A = 'in'\n    ask(A)", ["in"]),
        ("A = 'out'\ndef f():\n    ask(A)", ["out"]),
        ("def f():\n    global A\n    A = 'in'\nask(A)", ["in"]),
        ("def f(a):\n    ask(a)\nf('x')\nf(a='y')", ["x", "y"]),
        ("def f(a, b='z'):\n    ask(b)\nf('x')", ["z"]),
        ("def f():\n    return 'x'\nask(f())", ["x"]),
        ("def f(a):\n    return os.path.join(a, 'x')\nask(f('b'))", ["b/x"]),
        ("class A:\n    b = 'x'\nask(A.b)", ["x"]),
        ("class A:\n    b = 'x'\nclass B(A): ...\nask(B().b)", ["x"]),
        ("class A:\n    def f(self):\n        return 'x'\nask(A().f())", ["x"]),
        ("class A:\n    def f(self, b):\n        return b\nask(A().f('x'))", ["x"]),
        ("class A:\n    b: str = 'x'\nc = A()\nask(c.b)", ["x"]),
        ("class A:\n    b: str = 'x'\nc = A(b='y')\nask(c.b)", ["y"]),
        (
            "class A:\n    def __init__(self):\n        self.b = 'x'\n"
            "    def f(self):\n        ask(self.b)",
            ["x"],
        ),
        (
            "class A:\n    def __init__(self, b):\n        self.b = b\n"
            "    def f(self):\n        ask(self.b)\nA('x')",
            ["x"],
        ),
        ("if A := 'x':\n    ask(A)", ["x"]),
        ("ask('a' or 'b')", ["a"]),
        ("ask(None or 'b')", ["b"]),
        ("ask(int('12'))", [12]),
        ("ask(tf.constant('a'))", ["a"]),
    ],
)
def test_certain_values(
    tmp_path: Path, source: str, values: list[str | int | float | None]
) -> None:
    assert sorted(values_of(tmp_path, source), key=repr) == whole(*values)


@pytest.mark.parametrize(
    ("source", "begins"),
    [
        ("ask(f'data/{input()}')", "data/"),
        ("ask('data/%d' % 7)", "data/"),
        ("ask('data/{}'.format(7))", "data/"),
        ("ask('data/' + input())", "data/"),
        ("ask(os.path.join('data', input()))", "data/"),
        ("ask(Path('data') / input())", "data/"),
        ("ask(os.environ['TPUCTL_OUTPUT'])", "gs://"),
        ("ask(f\"gs://{os.environ['TPUCTL_BUCKET']}/x\")", "gs://"),
        ("ask(os.environ.get('TPUCTL_OUTPUT', '/tmp/x'))", "gs://"),
        ("ask(os.path.join(os.getcwd(), 'x'))", "/"),
        ("ask(Path(__file__).parent / 'x')", "/"),
        ("ask(tempfile.mkdtemp())", "/tmp/"),
        ("with tempfile.TemporaryDirectory() as A:\n    ask(A)", "/tmp/"),
        ("ask(sorted(Path('data').glob('*.txt')))", "data/"),
        ("ask([str(one) for one in Path('data').iterdir()])", "data/"),
        ("for A in Path('data').iterdir():\n    ask(str(A))", "data/"),
        ("ask(tf.io.gfile.glob('gs://b/*.tfrecord'))", "gs://b/*.tfrecord"),
        ("A = glob.glob('data/*')\nask(A[:10])", "/"),
    ],
)
def test_known_prefixes(tmp_path: Path, source: str, begins: str) -> None:
    assert values_of(tmp_path, source) == [Constant(begins, is_complete=False)]


PARSER = "p = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    ("source", "value", "option"),
    [
        (
            PARSER + "p.add_argument('--data-dir', '-d', default='data')\n"
            "args = p.parse_args()\nask(args.data_dir)",
            "data",
            "--data-dir",
        ),
        (
            PARSER + "p.add_argument('--n', type=int, default=3)\n"
            "def main(args):\n    ask(args.n * 2)\nmain(p.parse_args())",
            6,
            "--n",
        ),
        (
            PARSER + "p.add_argument('--n', dest='many', default=3)\nask(p.parse_args().many)",
            3,
            "--n",
        ),
        (
            "from absl import app, flags\nFLAGS = flags.FLAGS\n"
            "flags.DEFINE_string('data', 'x', 'help')\nask(FLAGS.data)",
            "x",
            "--data",
        ),
        (
            "import click\n@click.command()\n@click.option('--data-dir', default='x')\n"
            "def main(data_dir):\n    ask(data_dir)\nmain()",
            "x",
            "--data-dir",
        ),
        (
            "import typer\napp = typer.Typer()\n@app.command()\ndef main(data: str = 'x'):\n"
            "    ask(data)",
            "x",
            "--data",
        ),
        (
            "import typer\napp = typer.Typer()\n@app.command()\n"
            "def main(data: str = typer.Option('x', help='y')):\n    ask(data)",
            "x",
            "--data",
        ),
        ("ask(os.environ.get('DATA', 'x'))", "x", "DATA"),
        ("ask(os.getenv('DATA', 'x'))", "x", "DATA"),
        ("def f(a='x'):\n    ask(a)", "x", ""),
        ("def f(a):\n    ask(a)\nf('x')\nf(input())", "x", ""),
        ("def f(a):\n    ask(a)\nf('x')\nprint(f)", "x", ""),
        ("ask(input() or 'x')", "x", ""),
        ("A = 'x'\nif input():\n    A = input()\nask(A)", "x", ""),
    ],
)
def test_uncertain_values(tmp_path: Path, source: str, value: str | int, option: str) -> None:
    assert values_of(tmp_path, source) == [Constant(value, is_certain=False, option=option)]


@pytest.mark.parametrize(
    "source",
    [
        "ask(input())",
        "ask(os.environ['DATA'])",
        "ask(f'{input()}/data')",
        "A = 1\nA += 1\nask(B)",
        "def f(a):\n    ask(a)",
        "A = A\nask(A)",
        "def f(a):\n    return f(a)\nask(f(1))",
        "ask(1 // 0)",
        "ask(1 << 10**9)",
        "ask(10**10**9)",
        "ask('a' - 1)",
        "ask({}['x'])",
        "def f(a):\n    ask(a)\n" + "f('x')\n" * 16 + "f('gs://x')\n",
        "for A in {'x': 'a'}:\n    ask(A)",
        "ask(max(1, 2))",
        "ask(' / '.join(['a', 'b']))",
    ],
)
def test_unknown_values_are_empty(tmp_path: Path, source: str) -> None:
    assert values_of(tmp_path, source) == []


LENGTH = 200
CHAINS = {
    "variables": "a0 = 'x'\n"
    + "".join(f"a{n + 1} = os.path.join(a{n}, 'x')\n" for n in range(LENGTH))
    + f"ask(a{LENGTH})",
    "functions": "def f0():\n    return 'x'\n"
    + "".join(f"def f{n + 1}():\n    return f{n}()\n" for n in range(LENGTH))
    + f"ask(f{LENGTH}())",
    "classes": "class A0:\n    b = 'x'\n"
    + "".join(f"class A{n + 1}:\n    b = A{n}().b\n" for n in range(LENGTH))
    + f"ask(A{LENGTH}().b)",
    "terms": f"ask({' + '.join(['input()'] * LENGTH)})",
}


@pytest.mark.parametrize("source", CHAINS.values(), ids=CHAINS)
def test_long_chains_are_unknown(tmp_path: Path, source: str) -> None:
    """They do not exceed Python's stack, which would skip a rule."""
    assert values_of(tmp_path, source) == []


def test_constants_of_other_files(tmp_path: Path) -> None:
    config = "ROOT = 'gs://b'\nDATA = os.path.join(ROOT, 'data')\n"
    for source in (
        "from config import DATA\nask(DATA)",
        "import config\nask(config.DATA)",
        "from again import DATA\nask(DATA)",
    ):
        again = "from config import DATA\n"
        assert values_of(tmp_path, source, config=config, again=again) == whole("gs://b/data")


def test_arguments_from_other_files(tmp_path: Path) -> None:
    source = "from helper import read\nread('data.txt')"
    assert values_of(tmp_path, source, helper="def read(path):\n    ask(path)") == whole("data.txt")


@pytest.mark.parametrize(
    ("constant", "local", "bucket"),
    [
        (Constant("data.txt"), True, False),
        (Constant("data"), True, False),
        (Constant("./data/*.txt"), True, False),
        (Constant("/data/x"), True, False),
        (Constant("file:///data/x"), True, False),
        (Constant("~/data"), True, False),
        (Constant("data/", is_complete=False), True, False),
        (Constant("/", is_complete=False), True, False),
        (Constant("gs://b/x"), False, True),
        (Constant("gs://", is_complete=False), False, True),
        (Constant("s3://b/x"), False, False),
        (Constant("hdfs://b/x"), False, False),
        (Constant("g", is_complete=False), False, False),
        (Constant("", is_complete=False), False, False),
        (Constant(""), False, False),
        (Constant(7), False, False),
        (Constant(None), False, False),
    ],
)
def test_path_locations(constant: Constant, *, local: bool, bucket: bool) -> None:
    assert (is_local(constant), is_bucket(constant)) == (local, bucket)
