"""`run --tpu` without a cloud: the stack's name and project, its stack file, and bad input."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tpuctl.catalog import AcceleratorType, type_named
from tpuctl.cli.main import run
from tpuctl.errors import Usage
from tpuctl.flows.stack.init import TpuOptions
from tpuctl.flows.stack.script_stack import (
    Project,
    ScriptStack,
    find_project,
    script_stack,
    stack_name,
)
from tpuctl.model.jobs.hint_commands import with_stack, with_tpu
from tpuctl.model.stack.stack import read_stack
from tpuctl.model.text.names import STACK_NAME, Names, bucket_name_problem
from tpuctl.preflight.submit_gate import Runnable, runnable

pytestmark = pytest.mark.usefixtures("empty_folder")
STACK = "project: {id: my-project}\ntpu: {type: v5litepod-8, zones: [us-central1-a]}\n"


def tpu_type(name: str) -> AcceleratorType:
    accelerator = type_named(name)
    assert accelerator is not None
    return accelerator


def open_script(program: Runnable, name: str = "v5e-1", **options: object) -> ScriptStack:
    accelerator = tpu_type(name)
    tpu = TpuOptions(accelerator, **options)  # type: ignore[arg-type]
    return script_stack(program, accelerator, tpu, Project("my-project"))


def test_name_is_of_the_script_and_its_folder(tmp_path: Path) -> None:
    programs = [
        runnable("a/train.py"),
        runnable("b/train.py"),
        runnable("a/eval.py"),
        runnable("train", "module"),
        runnable("train.py", "shell"),
        runnable("a/" + "long" * 20 + ".py"),
        runnable("a/3개.py"),
        runnable("a/google.py"),
    ]
    names = [stack_name(program, "my-project") for program in programs]
    assert len({*names}) == len(programs)
    assert names[0].startswith("a-train-")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "go.py").touch()
    assert "-go-" in f"-{stack_name(runnable('pkg.go', 'module'), 'my-project')}"
    assert names == [stack_name(program, "my-project") for program in programs]
    assert names[0] == stack_name(runnable(str(tmp_path / "a" / "train.py")), "my-project")
    for name in names:
        assert re.fullmatch(STACK_NAME, name), name
        assert not bucket_name_problem(Names(name, "my-project").bucket)


@pytest.mark.parametrize(
    ("program", "name", "options"),
    [
        ("train.py", "v5e-1", {}),
        ("train.py", "trillium-8", {"is_spot": True}),
        ("my job/train.py", "v2-8", {"zones": ("us-central1-b", "us-central1-c")}),
        ("sh/train.sh", "v7x", {}),
    ],
)
def test_printed_command_writes_the_same_stack(
    program: str, name: str, options: dict[str, object]
) -> None:
    path = Path(program)
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n" if path.suffix == ".sh" else "import jax\n", "utf-8")
    script = open_script(runnable(program), name, **options)
    assert run([*shlex.split(script.init_command), "--yes"]) == 0
    written = read_stack(path.parent / "tpuctl.yaml")
    for attribute in ("names", "accelerator", "candidates", "bucket", "bucket_location"):
        assert getattr(written, attribute) == getattr(script.stack, attribute)
    assert written.file.limits == script.stack.file.limits
    assert written.is_spot == script.stack.is_spot


def test_project_is_the_configured_one(tmp_path: Path) -> None:
    def source_of(*, local: bool = False, option: str = "", **environment: str) -> tuple[str, str]:
        variables = {"CLOUDSDK_CONFIG": str(tmp_path), **environment}
        project = find_project(option, local=local, accelerator="v5e-1", environment=variables)
        return project.id, project.source

    with pytest.raises(Usage, match="No project specified"):
        source_of()
    assert source_of(local=True) == ("local-project", "")
    (tmp_path / "configurations").mkdir()
    for name, text in (
        ("default", "[core]\nproject = of-default\n"),
        ("work", "[core]\naccount = me\nproject = of-work\n"),
        ("empty", "[core]\n"),
        ("damaged", "project = x\n[core\n"),
    ):
        (tmp_path / "configurations" / f"config_{name}").write_text(text, "utf-8")
    assert source_of()[0] == "of-default"
    (tmp_path / "active_config").write_text("work\n", "utf-8")
    assert source_of() == ("of-work", "gcloud's configuration")
    assert source_of(CLOUDSDK_ACTIVE_CONFIG_NAME="default")[0] == "of-default"
    for name in ("empty", "damaged", "absent", "../work"):
        with pytest.raises(Usage):
            source_of(CLOUDSDK_ACTIVE_CONFIG_NAME=name)
    assert source_of(CLOUDSDK_CORE_PROJECT="of-shell")[0] == "of-shell"
    variables = {"CLOUDSDK_CORE_PROJECT": "of-shell", "GOOGLE_CLOUD_PROJECT": "of-google"}
    assert source_of(**variables) == ("of-google", "GOOGLE_CLOUD_PROJECT")
    assert source_of(option="typed", **variables) == ("typed", "")
    assert source_of(local=True, CLOUDSDK_CORE_PROJECT="of-shell")[0] == "local-project"


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("", ["Stack file not found", "    tpuctl run --tpu v5e-1 train.py -- --steps 3"]),
        ("--tpu v6e-3", ["Unknown TPU type", "Did you mean v6e-4"]),
        ("--tpu v5e-1", ["No project", "    tpuctl --cloud local run --tpu v5e-1 train.py --"]),
        ("--tpu v5e-1 --project X", ["Invalid name", "--project"]),
        ("--tpu v5e-1 --project my-project --zone us-east5", ["us-east5 is a region"]),
        ("--tpu v6e-1 --project my-project --zone us-west4-a", ["not offered in zone"]),
        ("--tpu v5e-1 --detach", ["Conflicting options", "add --keep"]),
        ("--tpu v5e-1 --keep --down", ["Conflicting options", "--keep"]),
        ("--keep", ["Missing option", "    tpuctl run --tpu v5e-1 train.py -- --steps 3"]),
        ("--spot", ["--spot is for a TPU without a stack file"]),
        ("--zone us-east5-a", ["--zone is for a TPU without a stack file"]),
        ("--project my-project", ["--project is for a TPU without a stack file"]),
        ("--stack-file absent.yaml --tpu v5e-1", ["absent.yaml does not exist"]),
    ],
)
def test_bad_input_is_one_message(
    words: str,
    texts: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("print('never')\n", "utf-8")
    assert run(["run", "train.py", *words.split(), "--", "--steps", "3"]) != 0
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    for text in texts:
        assert text in error


@pytest.mark.parametrize(
    ("place", "words", "is_refused"),
    [
        (".", "--tpu v5e-8", False),
        (".", "--tpu v6e-8", True),
        (".", "--tpu v5e-8 --spot", True),
        (".", "--tpu v5e-8 --zone us-west4-a", True),
        (".", "--tpu v5e-8 --zone us-central1-a --project my-project", False),
        (".", "--tpu v5e-8 --project other-project", True),
        ("..", "--tpu v6e-8", True),
        ("job", "--tpu v6e-8", True),
    ],
)
def test_stack_file_with_another_tpu_is_named(
    place: str,
    words: str,
    is_refused: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = tmp_path / "current"
    (current / "job").mkdir(parents=True)
    monkeypatch.chdir(current)
    (current / place / "tpuctl.yaml").write_text(STACK, "utf-8")
    (current / "job" / "broken.py").write_text("if\n", "utf-8")
    assert run(["run", "job/broken.py", *words.split()]) == (1 if is_refused else 65)
    error = capsys.readouterr().err
    path = {".": "tpuctl.yaml", "..": "../tpuctl.yaml", "job": "job/tpuctl.yaml"}[place]
    assert ("Stack file has another TPU" in error) is is_refused
    if is_refused:
        assert f"{path} is used here, with v5litepod-8, on-demand, in us-central1-a" in error
        assert "run --up --down job/broken.py" in error


def test_commands_in_hints_name_the_stack() -> None:
    options = "--stack bert --project my-project"
    for before, after in (
        ("tpuctl down", f"tpuctl down {options}"),
        ("tpuctl logs -f x --offset 3", f"tpuctl logs -f x --offset 3 {options}"),
        ("tpuctl --cloud local jobs", f"tpuctl --cloud local jobs {options}"),
        ("tpuctl jobs show x  # or", f"tpuctl jobs show x {options}  # or"),
        ("tpuctl ssh 0 -- ls -l", f"tpuctl ssh 0 {options} -- ls -l"),
        (f"tpuctl down {options}", f"tpuctl down {options}"),
        ("tpuctl explain --error TEXT", "tpuctl explain --error TEXT"),
        ("tpuctl types", "tpuctl types"),
    ):
        assert with_stack(f"Run\n    {before}\nor not", options) == f"Run\n    {after}\nor not"
    for before, after in (
        ("tpuctl up", "tpuctl run --tpu v5e-1 SCRIPT"),
        ("tpuctl run SCRIPT", "tpuctl run --tpu v5e-1 SCRIPT"),
        ("tpuctl run --up --down a.py -- 3", "tpuctl run --tpu v5e-1 a.py -- 3"),
        ("tpuctl run --tpu v5e-8 a.py", "tpuctl run --tpu v5e-8 a.py"),
        ("tpuctl down", "tpuctl down"),
    ):
        assert with_tpu(f"Run\n    {before}", "--tpu v5e-1") == f"Run\n    {after}"
