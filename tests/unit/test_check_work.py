"""What the check of a project leaves undone, since it can decide nothing."""

from __future__ import annotations

import ast
import gc
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tpuctl.model.scripts.toml_documents import parse_toml
from tpuctl.preflight import check
from tpuctl.preflight.analysis import requirements
from tpuctl.preflight.analysis.program import syntax
from tpuctl.preflight.analysis.program.control_flow import loop_around
from tpuctl.preflight.analysis.program.source import ParsedFiles, Project, load
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.check import check_folder, default_target, target_of
from tpuctl.preflight.findings import Finding, Target
from tpuctl.preflight.rules import FINDERS, codes_for
from tpuctl.preflight.rules.jax import tpu611_key_reused, tpu614_donated_array_read
from tpuctl.preflight.rules.job import tpu502_secret_in_source
from tpuctl.preflight.rules.tensorflow_host import tpu413_gpu_left_over

Calls = Callable[[object, str], list[tuple[Any, ...]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Records the arguments of a function's calls."""

    def record(owner: object, name: str) -> list[tuple[Any, ...]]:
        function, recorded = getattr(owner, name), list[tuple[Any, ...]]()

        def recording(*arguments: Any, **keywords: Any) -> Any:
            recorded.append(arguments)
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, recording)
        return recorded

    return record


def project_of(folder: Path, text: str) -> Project:
    (folder / "train.py").write_text(text, "utf-8")
    return load(folder / "train.py")


def findings_of(code: str, folder: Path, text: str) -> list[Finding]:
    return [*FINDERS[code](project_of(folder, text), default_target())]


def test_requirements_are_read_once_for_all_scripts_without_their_own(
    tmp_path: Path, calls: Calls
) -> None:
    (tmp_path / "requirements.txt").write_text("jax==0.4.30\n", "utf-8")
    for number in range(4):
        (tmp_path / f"train{number}.py").write_text(f"import jax, module{number}\n", "utf-8")
    metadata = '# /// script\n# dependencies = ["jax==0.4.31"]\n# ///\n'
    (tmp_path / "own.py").write_text(metadata + "import jax\n", "utf-8")
    read = calls(requirements, "possibly_required")
    findings = check_folder(tmp_path, default_target()).findings
    texts = {(finding.path.name, finding.message[:11]) for finding in findings}
    assert {("requirements.txt", "jax==0.4.30"), ("own.py", "jax==0.4.31")} <= texts
    scripts = [script.name for _, _, script in read]
    assert len([name for name in scripts if name != "own.py"]) == 1


def test_a_lock_is_parsed_once_for_the_python_and_the_packages_of_all_scripts(
    tmp_path: Path, calls: Calls
) -> None:
    lock = 'version = 1\nrequires-python = ">=3.12"\n\n'
    lock += '[[package]]\nname = "jax"\nversion = "0.4.30"\n'
    (tmp_path / "uv.lock").write_text(lock, "utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "trainer"\n', "utf-8")
    for number in range(3):
        (tmp_path / f"train{number}.py").write_text("import jax\n", "utf-8")
    parse_toml.cache_clear()
    parsed = calls(tomllib, "loads")
    check_folder(tmp_path, partial(target_of, None))
    assert target_of(None, tmp_path).asked_by.endswith("uv.lock:2")
    assert [text for (text,) in parsed].count(lock) == 1


@pytest.mark.parametrize("setting", ["requirements.txt", "other.txt"])
def test_requirements_are_those_of_the_folder_and_the_target(tmp_path: Path, setting: str) -> None:
    from dataclasses import replace

    files = ParsedFiles()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in ("requirements.txt", "other.txt"):
            (tmp_path / name / file).write_text(f"{name}-{file[:5]}\n", "utf-8")
        (tmp_path / name / "train.py").write_text("import one\n", "utf-8")
    for name in ("one", "two"):
        for file in ("other.txt", setting):
            project = load(tmp_path / name / "train.py", files=files)
            target = replace(default_target(), requirements=file)
            listed = requirements.required_by(project, target)
            assert [requirement.name for requirement in listed] == [f"{name}-{file[:5]}"]


@pytest.mark.parametrize(
    ("imported", "applies"),
    [
        ("jax", False),
        ("torch_xla", False),
        ("os", True),
        ("jax, tensorflow_datasets", True),
        ("torch_xla, tf_keras", True),
    ],
)
def test_rules_of_tensorflow_on_the_host_stay_out_of_programs_without_it(
    tmp_path: Path, imported: str, applies: bool
) -> None:
    project = project_of(tmp_path, f"import {imported}\n")
    codes = {*codes_for(project, default_target())}
    codes_of_node = {*codes_for(project, Target("node", "2.12.0"))}
    of_the_host = {"TPU301", "TPU401", "TPU406", "TPU409", "TPU413"}
    assert codes & of_the_host == (of_the_host if applies else set())
    assert codes_of_node >= of_the_host


HOST_LOOP = "for number in range(100):\n    step(number / 2)\n"


@pytest.mark.parametrize("code", ["TPU204", "TPU411"])
def test_programs_are_looked_for_only_if_there_is_one(
    tmp_path: Path, calls: Calls, code: str
) -> None:
    evaluated = calls(HostCode, "evaluate")
    function = "def step(x): ...\n\n"
    assert not findings_of(code, tmp_path, "import tensorflow as tf\n\n" + function + HOST_LOOP)
    assert not evaluated
    findings_of(code, tmp_path, "import tensorflow as tf\n\n@tf.function\n" + function + HOST_LOOP)
    assert evaluated


@pytest.mark.parametrize("imported", ["jax", "tensorflow", "tensorflow_datasets"])
def test_receivers_of_apply_may_be_datasets_only_with_their_libraries(
    tmp_path: Path, calls: Calls, imported: str
) -> None:
    from tpuctl.preflight.analysis.tracing.host_functions import is_host

    project = project_of(tmp_path, f"import {imported}\n\nmodel.apply(variables, batch)\n")
    evaluated = calls(HostCode, "evaluate")
    assert not is_host(project, project.script, project.script.calls[0])
    assert bool(evaluated) is (imported != "jax")


def test_strategies_are_looked_for_once(tmp_path: Path) -> None:
    text = "import tensorflow as tf\n\nstrategy = tf.distribute.TPUStrategy()\n"
    project = project_of(tmp_path, text)
    assert len(tpu_strategies(project)) == 1
    assert tpu_strategies(project) is tpu_strategies(project)


def test_random_draws_are_looked_for_only_in_what_contains_one(
    tmp_path: Path, calls: Calls
) -> None:
    text = "import jax\n\nrows = load(name(1))\n\ndef read():\n    return load(name(2))\n\n"
    draws = "key = jax.random.key(0)\n" + "x = f(jax.random.normal(key))\n" * 2
    visited = calls(tpu611_key_reused, "parts_of")
    assert [finding.line for finding in findings_of("TPU611", tmp_path, text + draws)] == [10]
    statements = {node.lineno for (node,) in visited if isinstance(node, ast.stmt)}
    assert statements == {9, 10}


def test_donations_are_looked_for_only_in_calls_that_pass_a_name(
    tmp_path: Path, calls: Calls
) -> None:
    step = "import jax\n\nstep = jax.jit(lambda x: x, donate_argnums=0)\n"
    calls_seen = calls(tpu614_donated_array_read, "compiled_of")
    text = step + "print(load(1))\nstep(x)\nprint(x)\n"
    assert [finding.line for finding in findings_of("TPU614", tmp_path, text)] == [6]
    assert {call.lineno for _, _, call in calls_seen} == {5, 6}


def test_secrets_are_looked_for_only_in_what_has_a_long_text(tmp_path: Path, calls: Calls) -> None:
    assignments = calls(tpu502_secret_in_source, "_assigned_names")
    text = 'width = 8\nmode = "train"\ncall(width=3, name="short")\npassword = "Vq7mZk2pXw9s"\n'
    assert [finding.line for finding in findings_of("TPU502", tmp_path, text)] == [4]
    assert [node.lineno for (node,) in assignments] == [4]


def test_items_are_asked_for_gpus_only_in_files_that_list_them(
    tmp_path: Path, calls: Calls
) -> None:
    calls_seen = calls(tpu413_gpu_left_over, "_is_first_gpu")
    head = "import tensorflow as tf\n\nprint(rows[0])\n"
    assert not findings_of("TPU413", tmp_path, head)
    assert not calls_seen
    gpu = 'gpu = tf.config.list_physical_devices("GPU")[0]\n'
    assert [finding.line for finding in findings_of("TPU413", tmp_path, head + gpu)] == [4]


def test_returns_are_looked_for_in_statements_only(calls: Calls) -> None:
    text = """
def train(rows):
    for row in map(str, rows):
        with open(row[0]) as file:
            if (row or [1, 2]) and (lambda: 3)():
                return file.read()
    try:
        def nested():
            return 0
    except OSError:
        return [None]
    match rows:
        case [1, 2]:
            return 1
"""
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    visited = calls(syntax, "parts_of")
    lines: Iterator[int] = (node.lineno for node in syntax.returns_of(function))
    assert sorted(lines) == [6, 11, 14]
    assert not [node for (node,) in visited if isinstance(node, ast.expr)]


def test_no_garbage_is_collected_during_a_check_even_if_a_timer_enables_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[str] = []

    def allocate(project: Project, target: Target) -> list[Finding]:
        gc.enable()  # as the command's timer does after some seconds
        gc.callbacks.append(lambda phase, details: collected.append(phase))
        lists = [[number] for number in range(100_000)]
        gc.callbacks.pop()
        assert lists
        return []

    monkeypatch.setattr(check, "codes_for", lambda project, target: ["TPU001"])
    monkeypatch.setattr(check, "FINDERS", {"TPU001": allocate})
    thresholds = gc.get_threshold()
    (tmp_path / "train.py").write_text("import jax\n", "utf-8")
    check_folder(tmp_path, default_target())
    assert (collected, gc.get_threshold()) == ([], thresholds)


def test_loops_around_calls_are_those_whose_bodies_contain_them(tmp_path: Path) -> None:
    text = """
for epoch in range(3):
    for batch in data(epoch):
        step(batch)
    else:
        save(epoch)

    def report(value=default()):
        show(value)
while ready():
    wait()
"""
    module = project_of(tmp_path, text).script
    loops = {
        ast.unparse(call): getattr(loop_around(module, call), "lineno", None)
        for call in module.calls
    }
    assert loops == {
        "range(3)": None,
        "data(epoch)": 2,
        "step(batch)": 3,
        "save(epoch)": 2,
        "default()": None,
        "show(value)": None,
        "ready()": None,
        "wait()": 10,
    }
    assert loop_around in module.cache
