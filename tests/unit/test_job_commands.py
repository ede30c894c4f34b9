"""The program of `run`: a script, module or command, found and checked on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.job_records import job_record
from tpuctl.cli.main import run
from tpuctl.errors import TpuctlError
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.jobs.job import JobKind, JobRecord
from tpuctl.preflight.submit_gate import check_runnable, check_setup, check_wheels, runnable

JAX = "import jax\nimport jax.numpy as jnp\nprint(jnp.ones(8).sum(), jax.device_count())\n"
TORCH = "import torch, torch_xla.core.xla_model as xm\nprint(torch.ones(8).to(xm.xla_device()))\n"
# Valid Python that does nothing.
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: packages at its top and below src, programs, scripts."""
    folder = tmp_path / "project"
    for name, text in {
        "train.py": JAX,
        "models/train_torch.py": TORCH,
        "bert/__init__.py": "",
        "bert/__main__.py": "",
        "bert/train.py": JAX,
        "bert/broken.py": "if\n",
        "bert/deep/more.py": "",
        "src/gpt/train.py": TORCH,
        "notes.txt": "buy milk\n",
        "notebook.ipynb": NOTEBOOK,
        "renamed.py": NOTEBOOK,
        "data.py": '{"cells": [], "nbformat_minor": 4}\n',
        "package/__main__.py": "",
        "requirements/tpu.txt": "numpy\n",
        "train.pyc": "\0",
        "requirements.txt": "# pinned\nPy_Test==8.0\ntqdm\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, text, mode in (
        ("train.sh", "#!/bin/bash\nexec python train.py\n", 0o755),
        ("scripts/run.sh", "#!/usr/bin/env bash\n", 0o755),
        ("locked.sh", "#!/bin/bash\n", 0o644),
        ("bare.sh", "echo 1\n", 0o755),
        ("windows.sh", "#!/bin/bash\r\necho 1\r\n", 0o755),
        ("binary", "\x7fELF", 0o755),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
        (folder / name).chmod(mode)
    (tmp_path / "sibling.sh").write_text("#!/bin/sh\n")
    (tmp_path / "sibling.sh").chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.mark.parametrize(
    ("program", "form", "file"),
    [
        ("train.py", "script", "train.py"),
        ("data.py", "script", "data.py"),
        ("models/train_torch.py", "script", "models/train_torch.py"),
        ("bert", "module", "bert/__main__.py"),
        ("bert.train", "module", "bert/train.py"),
        ("bert.deep.more", "module", "bert/deep/more.py"),
        ("gpt.train", "module", "src/gpt/train.py"),
        ("json.tool", "module", None),
        ("py_test", "module", None),
        ("./train.sh", "shell", "train.sh"),
        ("scripts/run.sh", "shell", "scripts/run.sh"),
        ("./binary", "shell", "binary"),
        ("bash", "shell", None),
        ("/opt/worker/program", "shell", None),
        ("what-only-workers-have", "shell", None),
    ],
)
def test_runnable_programs_are_found(
    folder: Path, program: str, form: JobKind, file: str | None
) -> None:
    runnable_command = runnable(program, form)
    assert runnable_command.form == form
    assert runnable_command.file == (None if file is None else Path(file))
    assert runnable_command.folder == (Path(program).parent if form == "script" else Path())
    check_runnable(runnable_command, Installation(requirements="requirements.txt"))


def test_shell_script_runs_in_its_folder(folder: Path) -> None:
    runnable_command = runnable("scripts/run.sh")
    assert (runnable_command.form, runnable_command.program, runnable_command.folder) == (
        "shell",
        "./run.sh",
        Path("scripts"),
    )
    check_runnable(runnable_command, Installation())
    (folder / "train.py").write_text("#!/usr/bin/env python3\nprint(1)\n")
    assert runnable("train.py").form == "script"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "tpuctl run -m package.train"),
        ("--", 2, "Nothing to run"),
        ("absent.py", 2, "absent.py does not exist"),
        ("bert", 2, "bert is a folder"),
        ("notes.txt", 65, "tpuctl run -- ./notes.txt"),
        ("requirements/tpu.txt", 65, "tpuctl run -- ./requirements/tpu.txt"),
        ("train.pyc", 65, "Pass the source file"),
        ("notebook.ipynb", 2, "jupyter nbconvert --to script notebook.ipynb"),
        ("--no-check notebook.ipynb", 2, "notebook.ipynb is a notebook"),
        ("renamed.py", 2, "mv renamed.py renamed.ipynb"),
        ("-m notebook", 2, "jupyter nbconvert --to script notebook.ipynb"),
        ("-m notebook.ipynb", 2, "jupyter nbconvert --to script notebook.ipynb"),
        ("package", 2, "tpuctl run package/__main__.py"),
        ("locked.sh", 65, "chmod +x ./locked.sh"),
        ("-m bert/train.py", 2, "tpuctl run bert/train.py"),
        ("-m train.py", 2, "Invalid module name"),
        ("-m bert.trian", 2, "Did you mean bert.train?"),
        ("-m bert.deep", 2, "bert/deep/__main__.py is missing"),
        ("-m gpt.absent.train", 2, "src/gpt/absent/train.py does not exist"),
        ("-m train.loop", 2, "train.py is a file, not a package"),
        ("-m nowhere.train", 2, "nowhere is neither in the current folder"),
        ("-m bert.broken", 65, "bert/broken.py:1"),
        ("-m", 2, "requires an argument"),
        ("-- ./absent.sh", 2, "./absent.sh does not exist"),
        ("-- ./bert", 2, "./bert is a folder"),
        ("-- ../sibling.sh", 2, "is not below"),
        ("-- locked.sh", 2, "tpuctl run -- ./locked.sh"),
        ("-- ./locked.sh", 65, "chmod +x ./locked.sh"),
        ("-- ./bare.sh", 65, "#!/bin/bash"),
        ("-- ./windows.sh", 65, "sed -i"),
    ],
)
def test_invalid_programs_are_rejected_before_submission(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    (folder / "tpuctl.yaml").write_text(
        "stack: s\nproject: {id: my-project}\ntpu: {type: v2-8, zones: [us-central1-b]}\n"
    )
    assert run(["run", *arguments.split()]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "command", ["run", "export jobset", "check", "rehearse", "rehearse --compile"]
)
@pytest.mark.parametrize("name", ["notebook.ipynb", "renamed.py"])
def test_notebook_is_no_script_for_any_command(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    (folder / "tpuctl.yaml").write_text(
        "stack: s\nproject: {id: my-project}\ntpu: {type: v5litepod-8, zones: [us-west4-a]}\n"
    )
    assert run([*command.split(), name]) == 2
    assert f"{name} is a notebook" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--", "./train.sh --steps 3"], ["--", "echo a && echo b"]])
def test_command_in_one_argument_is_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (folder / "tpuctl.yaml").write_text(
        "stack: s\nproject: {id: my-project}\ntpu: {type: v2-8, zones: [us-central1-b]}\n"
    )
    assert run(["run", *words]) == 2
    assert "tpuctl run -- bash -c './prepare.sh && ./train.sh'" in capsys.readouterr().err


def test_module_may_come_from_installed_packages(folder: Path) -> None:
    runnable_command = runnable("trainer.main", "module")
    (folder / "wheels").mkdir()
    (folder / "wheels/trainer-1.0-py3-none-any.whl").touch()
    for installation in (
        Installation(dependencies=("Trainer[tpu]>=1",)),
        Installation(dependencies=("./.",)),
        Installation(project="."),
        Installation(wheels="wheels"),
    ):
        check_runnable(runnable_command, installation)
    with pytest.raises(TpuctlError):
        check_runnable(runnable_command, Installation(requirements="requirements.txt"))
    (folder / "requirements.txt").write_text("-r others.txt\n")
    check_runnable(runnable_command, Installation(requirements="requirements.txt"))


def test_home_folder_is_not_uploaded_for_module_or_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    for program, form in (("bert.train", "module"), ("./train.sh", "shell"), ("bash", "shell")):
        with pytest.raises(TpuctlError) as caught:
            check_runnable(runnable(program, form), Installation())  # type: ignore[arg-type]
        assert caught.value.exit_code == 65


def test_setup_command_requires_isolated_machines() -> None:
    check_setup(Installation(), are_isolated=False)
    check_setup(Installation(setup="true"), are_isolated=True)
    with pytest.raises(TpuctlError) as caught:
        check_setup(Installation(setup="true"), are_isolated=False)
    assert (caught.value.exit_code, caught.value.diagnostics[0].where) == (65, "job.setup")


@pytest.mark.parametrize(
    ("form", "script", "args", "argv", "command"),
    [
        ("script", "a b.py", ("--x", "1"), ["{python}", "a b.py", "--x", "1"], "'a b.py' -- --x 1"),
        ("module", "bert.train", (), ["{python}", "-m", "bert.train"], "-m bert.train"),
        (
            "module",
            "bert",
            ("it's",),
            ["{python}", "-m", "bert", "it's"],
            "-m bert -- 'it'\"'\"'s'",
        ),
        ("shell", "./train.sh", ("--x",), ["./train.sh", "--x"], "-- ./train.sh --x"),
    ],
)
def test_job_record_has_command(
    form: JobKind, script: str, args: tuple[str, ...], argv: list[str], command: str
) -> None:
    installation = Installation(requirements="requirements.txt", setup="./prepare.sh")
    record = job_record(kind=form, script=script, args=args, installation=installation)
    again = JobRecord.model_validate_json(record.model_dump_json())
    assert again == record
    assert (list(again.argv), again.command) == (argv, command)
    # A record of an earlier version is a script's, with nothing to install.
    old = json.loads(record.model_dump_json())
    del old["kind"], old["installation"]
    old_record = JobRecord.model_validate(old)
    assert (old_record.kind, old_record.installation) == ("script", Installation())


ARM = "numpy-2.3.0-cp310-cp310-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl"
X86 = "numpy-2.3.0-cp310-cp310-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
MAC = "numpy-2.3.0-cp310-cp310-macosx_14_0_arm64.whl"
ANY = "tqdm-4.67.1-py3-none-any.whl"


def put_wheels(folder: Path, *names: str) -> Installation:
    (folder / "wheels").mkdir()
    for name in names:
        (folder / "wheels" / name).touch()
    return Installation(wheels="wheels")


@pytest.mark.parametrize(
    ("names", "architecture"),
    [
        ((X86, ANY), "x86_64"),
        ((ARM, X86, MAC), "x86_64"),
        ((ARM, X86, ANY), "aarch64"),
        (("tool-1.0-1-py3-none-linux_x86_64.whl",), "x86_64"),
    ],
)
def test_wheels_of_workers_are_accepted(
    tmp_path: Path, names: tuple[str, ...], architecture: str
) -> None:
    check_wheels(tmp_path, put_wheels(tmp_path, *names), architecture)


@pytest.mark.parametrize(
    ("names", "architecture", "detail"),
    [
        ((ARM, ANY), "x86_64", f"{ARM} is not for the workers, which run Linux on x86_64"),
        ((X86,), "aarch64", f"{X86} is not for the workers, which run Linux on aarch64"),
        ((MAC,), "x86_64", MAC),
        (("tool-1.0-py3-none-musllinux_1_2_x86_64.whl",), "x86_64", "musllinux"),
        ((ARM, "jax-1.0-py3-none-win_amd64.whl"), "x86_64", " and 1 more are not for the workers"),
    ],
)
def test_wheels_of_other_machines_are_rejected(
    tmp_path: Path, names: tuple[str, ...], architecture: str, detail: str
) -> None:
    with pytest.raises(TpuctlError, match="Wheels for another architecture") as caught:
        check_wheels(tmp_path, put_wheels(tmp_path, *names), architecture)
    assert detail in str(caught.value)
    assert f"--platform manylinux2014_{architecture}" in caught.value.diagnostics[0].hint
