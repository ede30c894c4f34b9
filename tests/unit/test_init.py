"""`init` for a folder's own scripts, and its options for the TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl import assets
from tpuctl.cli.main import run
from tpuctl.flows.stack.init import detect_job
from tpuctl.model.stack.stack import Stack, load_stack

STACKS = sorted(path.stem for path in (assets.templates() / "stacks").iterdir())
INIT = ("init", "--project", "my-project")


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    return empty_folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def written(folder: Path) -> Stack:
    return load_stack(folder / "tpuctl.yaml")


def test_default_is_cheapest_type_that_trains(folder: Path) -> None:
    assert run([*INIT]) == 0
    stack = written(folder)
    assert (stack.accelerator.name, stack.zone) == ("v5litepod-1", "us-central1-a")
    assert stack.runtime.tensorflow == "2.18.0"


@pytest.mark.parametrize("template", STACKS)
def test_options_replace_templates_tpu(template: str, folder: Path) -> None:
    is_node = template == "tpu-node"
    type_name, zone = ("v3-8", "europe-west4-a") if is_node else ("v5litepod-4", "us-west4-b")
    type_option = type_name if is_node else "V5E-4"
    assert run([*INIT, template, "--type", type_option, "--zone", zone, "--spot"]) == 0
    stack = written(folder)
    assert (stack.file.tpu.type, stack.zones, stack.is_spot) == (type_name, (zone,), True)
    text = (folder / "tpuctl.yaml").read_text("utf-8")
    assert "16 chips" not in text, "says what is true of another type"
    assert "{" not in text.partition("\njob:")[0].replace("{idle", "").replace("retries: {", "")


def test_jax_is_written_for_every_generation(folder: Path) -> None:
    write(folder, {"train.py": "import jax\n"})
    assert run([*INIT, "--yes", "--type", "Ironwood"]) == 0
    assert written(folder).accelerator.name == "tpu7x-8"


def test_zone_decides_about_type(folder: Path) -> None:
    assert run([*INIT, "empty", "--zone", "us-south1-c"]) == 0
    stack = written(folder)
    assert (stack.accelerator.name, stack.zone) == ("v6e-1", "us-south1-c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--type", "v5e-7"], "Did you mean v5litepod-8"),
        (["--type", "v5e-8", "--zone", "us-central1-b"], "v5litepod-8 is not offered in us-c"),
        (["--zone", "us-cental1-a"], "no TPU is offered in us-cental1-a"),
        (["--zone", "us-central1"], "us-central1 is a region"),
        (["keras", "--type", "ironwood"], "TensorFlow (train.py), which does not run on tpu7x"),
        (["tpu-node", "--type", "v5e-8"], "is offered only as TPU VM"),
        (["korean-messages", "--type", "v5e-8"], "Remove --type"),
        (["--zone", "us-west4-a,us-east5-a"], "Bucket outside the TPU's region"),
    ],
)
def test_unsuitable_tpu_is_one_message(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*INIT, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("error: ") == 1
    assert list(folder.iterdir()) == []


def test_own_script_gets_stack_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"fit.py": "import flax\n", "setup.py": "", "requirements.txt": "jax[tpu]\n"})
    assert run([*INIT, "--yes", "--type", "v5e-8"]) == 0
    output = capsys.readouterr().out
    for text in ("fit.py", "JAX (requirements.txt)", "v5litepod-8 in us-central1-a", "$9.60/h"):
        assert text in output
    assert "    tpuctl run fit.py\n" in output
    stack = written(folder)
    assert stack.file.job.framework == "jax"
    assert stack.file.job.requirements == "requirements.txt"
    assert {path.name for path in folder.iterdir()} == {
        *("fit.py", "setup.py", "requirements.txt", "tpuctl.yaml")
    }


def test_own_script_is_not_written_for_unasked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {"train.py": "import tensorflow\n"})
    assert run([*INIT]) == 2
    assert "--yes" in capsys.readouterr().err
    assert not (folder / "tpuctl.yaml").exists()
    assert run([*INIT, "--yes"]) == 0
    capsys.readouterr()
    assert run([*INIT, "--yes"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "", "nothing is detected for a file that exists"
    assert "tpuctl.yaml exists" in captured.err
    assert captured.err.count("error: ") == 1


@pytest.mark.parametrize(
    ("files", "script", "framework", "requirements"),
    [
        ({"train.py": "import jax", "util.py": ""}, "train.py", "jax", ""),
        ({"a.py": "import torch_xla", "b.py": ""}, "a.py", "torch", ""),
        ({"a.py": "import jax", "b.py": "import jax"}, None, "jax", ""),
        ({"src/main.py": "import keras", "util.py": ""}, "src/main.py", "tensorflow", ""),
        ({"run.py": "import jax", "train.py": "import keras"}, "train.py", "tensorflow", ""),
        (
            {"train.py": "# /// script\n# dependencies = ['jax[tpu]']\n# ///\nimport jax"},
            *("train.py", "jax", "train.py"),
        ),
        (
            {"train.py": "import jax", "pyproject.toml": "[project]\ndependencies = ['jax']"},
            *("train.py", "jax", "pyproject.toml"),
        ),
    ],
)
def test_job_is_detected(
    files: dict[str, str],
    script: str | None,
    framework: str | None,
    requirements: str,
    folder: Path,
) -> None:
    write(folder, files)
    job = detect_job(folder)
    assert job is not None
    assert (job.script and job.script.as_posix()) == script
    assert (job.framework and job.framework.framework) == framework
    assert job.requirements == requirements


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({"train.py": "import jax"}, "jax[tpu] on a TPU: add it to requirements.txt"),
        (
            {"a/train.py": "import jax", "a/pyproject.toml": "[project]\ndependencies = ['jax']"},
            "jax[tpu] on a TPU: add it to a/pyproject.toml",
        ),
        ({"train.py": "import torch"}, "train.py imports torch without torch_tpu or torch_xla"),
        ({"train.py": "import torch_tpu"}, "PyTorch needs torch_tpu on a TPU"),
        ({"train.py": "import torch_xla"}, "PyTorch needs torch_xla[tpu] on a TPU"),
        (
            {"src/train.py": "import keras", "requirements.txt": "numpy"},
            "requirements.txt is not next to src/train.py",
        ),
    ],
)
def test_what_keeps_job_from_running_is_said(
    files: dict[str, str], note: str, folder: Path
) -> None:
    write(folder, files)
    job = detect_job(folder)
    assert job is not None
    assert any(note in text for text in job.notes), job.notes


@pytest.mark.parametrize(
    ("module", "requirement"), [("jax", "jax[tpu]==0.10.2"), ("torch", "torch_tpu==0.2.0")]
)
def test_complete_job_has_no_notes(module: str, requirement: str, folder: Path) -> None:
    write(folder, {"train.py": f"import {module}", "requirements.txt": f"{requirement}\n"})
    job = detect_job(folder)
    assert job is not None
    assert job.notes == ()


def test_folder_without_scripts_has_no_job(folder: Path) -> None:
    write(folder, {"notes/tool.py": "print()", ".venv/train.py": "import jax", "setup.py": ""})
    assert detect_job(folder) is None


def test_names_that_yaml_reads_otherwise_are_quoted(folder: Path) -> None:
    assert run([*INIT, "empty", "--name", "on"]) == 0
    assert written(folder).name == "on"
