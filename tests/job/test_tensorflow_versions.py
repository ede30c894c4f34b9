"""The job's choice of devices uses only what TensorFlow 2.1, 2.2 and 2.3 have.

The old versions do not run here: `tensorflow_names.py` read their names from the wheels.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import tensorflow_names

TESTS = Path(__file__).resolve().parents[1]
TRAINING = TESTS.parent / "templates" / "jobs" / "bert-pretraining" / "training"
KEPT = json.loads((TESTS / "job" / "tensorflow_names.json").read_text("utf-8"))
STRATEGIES = ("MirroredStrategy", "OneDeviceStrategy")

Names = dict[str, list[str]]
every_version = pytest.mark.parametrize("version", sorted(KEPT))


def module_of(names: Names) -> Any:
    """Return a stub of `tf` with these names."""
    root = SimpleNamespace(called="tf")
    for name in names:
        there = root
        for part in name.split(".")[1:]:
            child = SimpleNamespace(called=f"{there.called}.{part}")
            there = there.__dict__.setdefault(part, child)
    return root


def fits(takes: list[str], positional: int, keywords: set[str]) -> bool:
    """Whether `takes` accepts a call with this many positional arguments and these keywords."""
    free = [parameter.rstrip("=") for parameter in takes if not parameter.startswith("*")]
    needed = {
        parameter
        for parameter in takes
        if not parameter.startswith("*") and not parameter.endswith("=")
    }
    passed = set(free[:positional]) | keywords
    return positional <= len(free) and keywords <= set(free[positional:]) and needed <= passed


@pytest.mark.parametrize(
    ("takes", "positional", "keywords", "expected"),
    [
        (["fn", "args="], 1, {"args"}, True),
        (["fn", "args="], 1, set(), True),
        (["fn", "args="], 0, {"args"}, False),
        (["fn", "args="], 1, {"fn"}, False),
        (["fn", "args="], 3, set(), False),
        (["fn", "args="], 1, {"options"}, False),
        ([], 0, set(), True),
    ],
)
def test_call_signature_matching(
    takes: list[str], positional: int, keywords: set[str], expected: bool
) -> None:
    assert fits(takes, positional, keywords) is expected


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def nodes(file: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((TRAINING / file).read_text("utf-8"))))


@pytest.mark.parametrize("file", ["accelerators.py", "strategy.py", "versions.py", "../errors.py"])
def test_device_choice_parses_as_python_3_7(file: str) -> None:
    """The newest Python that 2.1 runs with; 2.2 and 2.3 also support 3.8."""
    ast.parse((TRAINING / file).read_text("utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize(
    ("version", "strategy", "run"),
    [
        ("2.1.0", "tf.distribute.experimental.TPUStrategy", "experimental_run_v2"),
        ("2.2.0", "tf.distribute.experimental.TPUStrategy", "run"),
        ("2.3.0", "tf.distribute.TPUStrategy", "run"),
    ],
)
def test_version_specific_names_exist(
    job: SimpleNamespace, version: str, strategy: str, run: str
) -> None:
    names: Names = KEPT[version]
    picked = job.versions.names_in(module_of(names))
    assert (picked.tpu_strategy.called, picked.run) == (strategy, run)
    assert fits(names[strategy], 1, set()), "called with the resolver only"
    for name in (strategy, *(f"tf.distribute.{kind}" for kind in STRATEGIES)):
        assert fits(names[f"{name}.{run}"], 1, {"args"})
    newest = {"tf.distribute.TPUStrategy", "tf.distribute.Strategy.run"}
    assert newest - set(names) == newest - {strategy, f"tf.distribute.Strategy.{run}"}


@every_version
def test_other_names_exist_in_all_versions(version: str) -> None:
    names: Names = KEPT[version]
    allowed = {*names, "tf.__version__"}
    used = {dotted(node) for node in nodes("strategy.py") if isinstance(node, ast.Attribute)}
    used = {name for name in used if name.startswith("tf.")}
    parts = {name for name in used if any(other.startswith(f"{name}.") for other in used)}
    assert len(used - parts) > 10
    assert used - parts - allowed == set()
    calls = [node for node in nodes("strategy.py") if isinstance(node, ast.Call)]
    for call in calls:
        name = dotted(call.func)
        if name.startswith("tf."):
            keywords = {str(keyword.arg) for keyword in call.keywords}
            assert fits(names[name], len(call.args), keywords), ast.unparse(call)


@every_version
def test_training_uses_only_common_strategy_attributes(version: str) -> None:
    of_a_strategy = {
        node.attr
        for file in TRAINING.glob("*.py")
        for node in nodes(file.name)
        if isinstance(node, ast.Attribute) and dotted(node.value).split(".")[-1] == "strategy"
    }
    assert {"scope", "experimental_distribute_dataset"} <= of_a_strategy
    assert of_a_strategy <= {name.rpartition(".")[2] for name in KEPT[version]}
    missing = {
        attribute
        for attribute in of_a_strategy
        if f"tf.distribute.Strategy.{attribute}" not in KEPT[version]
    }
    assert missing == set()


@pytest.mark.soak
@pytest.mark.timeout(900)  # the first time, the wheels are downloaded
def test_stored_names_match_the_wheels() -> None:
    from tpuctl.emulator.machines.images import ImageStore

    actual = tensorflow_names.sources(ImageStore().cache / "tensorflow-names")
    assert {
        version: tensorflow_names.read_names(folder) for version, folder in actual.items()
    } == KEPT
