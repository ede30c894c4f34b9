"""`check FOLDER` parses each file once, and checks scripts that share files together."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpuctl.jobs.file_selection import Exclusion, FileRules
from tpuctl.jobs.upload_rules import upload_of
from tpuctl.preflight import check, rules
from tpuctl.preflight.analysis.program import source
from tpuctl.preflight.analysis.program.scope_definitions import Definitions, Key
from tpuctl.preflight.analysis.program.source import Module, ParsedFiles, Project, load
from tpuctl.preflight.analysis.tracing import traced
from tpuctl.preflight.analysis.tracing.traced import find_traced
from tpuctl.preflight.check import check_folder, default_target
from tpuctl.preflight.findings import Finding, Report, Target
from tpuctl.preflight.rules import FINDERS, codes_for, frameworks_of
from tpuctl.preflight.rules.jax_processes import tpu617_initialized_late

GUARD = '\nif __name__ == "__main__":\n    main()\n'
STEP = """\
import jax
import package.model

@jax.jit
def step(batch):
    if batch.sum() > 0:
        return batch
"""
CUDA = "def main():\n    torch.ones(4).cuda()\n"
XLA = "import torch_xla.core.xla_model as xm\n\ndef main():\n    model.to(xm.xla_device())\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def checked(folder: Path) -> Report:
    return check_folder(folder, default_target())


def places(report: Report, folder: Path) -> list[tuple[str, str, int]]:
    return [
        (finding.code, finding.path.relative_to(folder).as_posix(), finding.line)
        for finding in report.findings
    ]


@pytest.fixture
def projects(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The files of each project whose code is checked."""
    files: list[set[str]] = []
    find = FINDERS["TPU502"]

    def recorded(project: Project, target: Target) -> Iterator[Finding]:
        files.append({module.path.name for module in project})
        return find(project, target)

    class Finders(dict[str, Any]):
        def __missing__(self, code: str) -> Any:
            return recorded if code == "TPU502" else FINDERS[code]

    monkeypatch.setattr(check, "FINDERS", Finders())
    return files


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    parse = ast.parse

    def counted(source: Any, *args: Any, **options: Any) -> Any:
        counts[Path(options.get("filename", "")).name] += 1
        return parse(source, *args, **options)

    monkeypatch.setattr(ast, "parse", counted)
    return counts


def test_a_file_that_several_scripts_import_is_parsed_and_checked_once(
    tmp_path: Path, projects: list[set[str]], parses: Counter[str]
) -> None:
    scripts = {f"{name}.py": STEP + GUARD for name in ("one", "two", "three")}
    write(tmp_path, {"package/model.py": "import jax\n", **scripts})
    report = checked(tmp_path)
    assert places(report, tmp_path) == [("TPU601", name, 6) for name in sorted(scripts)]
    names = {"model.py", *scripts}
    assert {name: parses[name] for name in names} == dict.fromkeys(names, 1)
    assert projects == [names]


@pytest.mark.parametrize("count", [1, 5])
def test_the_frameworks_of_scripts_are_read_once_from_their_common_file(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[type[ast.AST], ...]] = []
    of_types = Module.of_types

    def recorded(module: Module, *types: type[ast.AST]) -> list[Any]:
        if module.path.name == "model.py":
            read.append(types)
        return of_types(module, *types)

    monkeypatch.setattr(Module, "of_types", recorded)
    model = tmp_path / "package/model.py"
    write(tmp_path, {"package/model.py": "import accelerate, keras, os, torch\n"})
    files = ParsedFiles()
    for number in range(count):
        write(tmp_path, {f"train{number}.py": "import package.model\n"})
        project = load(tmp_path / f"train{number}.py", tmp_path, files=files)
        assert model in {module.path for module in project}
        frameworks_of(project, default_target())
    assert len(read) == len(set(read)) > 0


def test_scripts_without_a_common_file_are_checked_apart(
    tmp_path: Path, projects: list[set[str]]
) -> None:
    write(tmp_path, {"one.py": "import jax\n", "two.py": "import jax\n"})
    checked(tmp_path)
    assert projects == [{"one.py"}, {"two.py"}]


def test_a_script_that_another_imports_is_checked_once(
    tmp_path: Path, projects: list[set[str]], parses: Counter[str]
) -> None:
    """Alphabetically, the imported one comes first, and has a guard."""
    write(
        tmp_path,
        {"base.py": "import jax\n" + GUARD, "train.py": "import base\n" + GUARD},
    )
    checked(tmp_path)
    assert (parses["base.py"], parses["train.py"]) == (1, 1)
    assert projects == [{"base.py", "train.py"}]


def test_rules_of_a_framework_stay_with_the_scripts_that_use_it(tmp_path: Path) -> None:
    """A script for GPUs is not one that was left with CUDA on its way to TPUs."""
    common = {"common.py": "model = None\n"}
    gpu = "from common import model\nimport torch\n\n" + CUDA + GUARD
    xla = "from common import model\n" + XLA + GUARD
    write(tmp_path, {**common, "gpu.py": gpu, "tpu.py": xla})
    assert "TPU701" not in {finding.code for finding in checked(tmp_path).findings}
    (tmp_path / "both.py").write_text("import torch_xla\n" + gpu, "utf-8")
    assert places(checked(tmp_path), tmp_path) == [("TPU701", "both.py", 6)]


def test_equal_names_of_different_files_stay_apart(tmp_path: Path) -> None:
    """Each folder's script imports its own `steps`."""
    script = "import package.model\nfrom steps import step\n\nstep(batch)\n"
    write(
        tmp_path,
        {
            "package/model.py": "import jax\n",
            "plain/steps.py": STEP.replace("if batch.sum() > 0", "if True"),
            "plain/train.py": script,
            "traced/steps.py": STEP,
            "traced/train.py": script,
        },
    )
    assert places(checked(tmp_path), tmp_path) == [("TPU601", "traced/steps.py", 6)]


def test_one_script_that_runs_its_steps_does_not_speak_for_another(tmp_path: Path) -> None:
    """A file that nothing calls is a library: others may call its functions."""
    step = "import jax\nimport common\n\n@jax.jit\ndef step(x):\n    if x > 0:\n        return x\n"
    files = {"common.py": "", "library.py": step, "train.py": f"{step}\nstep(1.0)\n"}
    write(tmp_path, files)
    findings = checked(tmp_path).findings
    assert {(finding.path.name, finding.severity.value) for finding in findings} == {
        ("library.py", "error"),
        ("train.py", "error"),
    }


def test_a_broken_import_is_reported_for_scripts_checked_together(tmp_path: Path) -> None:
    script = "import common\nimport broken\n"
    write(tmp_path, {"common.py": "", "broken.py": "if\n", "one.py": script, "two.py": script})
    assert places(checked(tmp_path), tmp_path) == [("TPU000", "broken.py", 1)]


def test_suppressed_findings_of_a_shared_file_count_once(tmp_path: Path) -> None:
    key = "DATABASE = 'postgresql://trainer:Vq7mZk2pXw9s@db.internal/corpus'"
    key += "  # tpuctl: ignore[TPU502]\n"
    files = {"common.py": key, "one.py": "import common\n", "two.py": "import common\n"}
    write(tmp_path, files)
    report = checked(tmp_path)
    assert (report.findings, report.suppressed) == ((), 1)


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_what_only_a_script_runs_does_not_run_when_it_is_imported(
    tmp_path: Path, guard: str
) -> None:
    train = f"import jax\nimport helper\n\njax.distributed.initialize()\n{GUARD}"
    write(tmp_path, {"train.py": train, "helper.py": f"import jax\n\n{guard}jax.devices()\n"})
    codes = [finding.code for finding in checked(tmp_path).findings]
    assert ("TPU617" in codes) == (not guard)


SHARED = {
    "package/__init__.py": "",
    "package/model.py": "import jax\nimport package.data\n",
    "package/data.py": "import jax\n\nrows = jax.numpy.ones(4)\n",
    **{f"train{number}.py": "import package.model\n" + GUARD for number in range(3)},
}


def test_files_that_scripts_share_are_located_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SHARED | {"other/train.py": "import package.data\n" + GUARD})
    uploaded: Counter[Path] = Counter()
    listed: Counter[Path] = Counter()
    exclusion_of, scandir = FileRules.exclusion_of, os.scandir

    def recorded_exclusion(file_rules: FileRules, path: Path) -> Exclusion | None:
        uploaded[path] += 1
        return exclusion_of(file_rules, path)

    def recorded_listing(folder: Path) -> Any:
        listed[folder] += 1
        return scandir(folder)

    monkeypatch.setattr(FileRules, "exclusion_of", recorded_exclusion)
    upload = upload_of(None, tmp_path, None)
    listing = SimpleNamespace(**{**vars(os), "scandir": recorded_listing})
    monkeypatch.setattr(source, "os", listing)
    check_folder(tmp_path, default_target(), upload)
    assert {path.name for path in uploaded} == {Path(name).name for name in SHARED} | {"train.py"}
    assert {tmp_path, tmp_path / "package", tmp_path / "other"} <= listed.keys()
    assert {*uploaded.values(), *listed.values()} == {1}


def test_what_scripts_import_is_searched_once_for_what_starts_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize = "import jax\nimport package.data\n\ndef start():\n"
    initialize += "    jax.distributed.initialize()\n"
    scripts = {name: "import package.start\n" + text for name, text in SHARED.items()}
    write(tmp_path, SHARED | {name: scripts[name] for name in scripts if "train" in name})
    write(tmp_path, {"package/start.py": initialize})
    searched: Counter[tuple[str, int]] = Counter()
    starting = tpu617_initialized_late._starting

    def recorded(project: Project, module: Module, node: ast.AST, depth: int) -> Any:
        if isinstance(node, ast.stmt) and depth == 0:
            searched[module.path.name, node.lineno] += 1
        return starting(project, module, node, depth)

    monkeypatch.setattr(tpu617_initialized_late, "_starting", recorded)
    assert ("TPU617", "package/start.py", 5) in places(checked(tmp_path), tmp_path)
    assert {*searched.values()} == {1}
    assert {name for name, _ in searched} == {"data.py"}  # the only one that starts it


def test_frameworks_are_asked_for_once_not_for_each_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"train.py": "import jax\n"})
    asked: list[str] = []

    def recorded(package: str) -> Any:
        return lambda project, target: asked.append(package)

    monkeypatch.setattr(rules, "FRAMEWORKS", {name: recorded(name) for name in rules.FRAMEWORKS})
    list(codes_for(load(tmp_path / "train.py"), default_target()))
    assert sorted(asked) == sorted(rules.FRAMEWORKS)


def test_reads_of_a_name_are_resolved_once_for_all_its_bindings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = "def train{}():\n    def step(): ...\n    step()\n\n"
    write(tmp_path, {"train.py": "".join(map(function.format, range(9)))})
    definitions = Definitions(load(tmp_path / "train.py"))
    resolved: list[ast.AST] = []
    key_of = Definitions.key_of

    def recorded(self: Definitions, module: Module, node: ast.AST) -> Key | None:
        resolved.append(node)
        return key_of(self, module, node)

    monkeypatch.setattr(Definitions, "key_of", recorded)
    steps = [key for key, _ in definitions.all if key[1] == "step"]
    lines = [[node.lineno for _, node in definitions.loads_of(key)] for key in steps]  # type: ignore[attr-defined]
    assert lines == [[4 * number + 3] for number in range(9)]
    assert len(resolved) == len(set(resolved)) == 9


def test_functions_on_the_host_are_looked_for_only_if_one_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ast.AST] = []
    is_host = traced.is_host

    def recorded(project: Project, module: Module, call: ast.Call) -> bool:
        asked.append(call)
        return is_host(project, module, call)

    monkeypatch.setattr(traced, "is_host", recorded)
    called = "def double(x): ...\n\ndata = data.map(double)\n"
    step = "import tensorflow as tf\n\n@tf.function\ndef step(): ...\n\nstep()\n"
    for text in (called, step + called):
        (tmp_path / "train.py").write_text(text, "utf-8")
        find_traced(load(tmp_path / "train.py"), default_target())
        assert bool(asked) is (step in text)
