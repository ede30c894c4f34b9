"""Every template from `init` to `down`, running the commands that each command suggests next."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tpuctl import assets
from tpuctl.local_cloud import server_process

# Arguments that shorten each job, and the last line of its log.
JOBS: dict[str, tuple[list[str], str]] = {
    "keras": (["--epochs", "1", "--examples", "512", "--batch", "128"], "the model is in gs://"),
    "tpu-node": (["--steps", "4", "--steps-per-call", "2", "--batch", "32"], "step 4/4"),
    "slice": (["--steps", "20", "--steps-per-call", "10"], "step 20/20"),
    "empty": ([], "hello"),
}
# Templates whose jobs need other packages, or longer, and the file here that runs them.
TESTED_IN = {
    "bert-pretraining": "test_bundled_job.py",
    "jax": "test_resuming_templates.py",
    "torch": "test_resuming_templates.py",
}


def test_every_template_with_stack_is_run() -> None:
    stacks = {path.stem for path in (assets.templates() / "stacks").iterdir()}
    lacking = sorted(stacks - {*JOBS, *TESTED_IN})
    assert not lacking, f"tests/flows/test_templates.py: JOBS lacks {lacking}"
    for name in {*JOBS, *TESTED_IN}:
        assert name in stacks, f"there is no templates/stacks/{name}.yaml"
    for file in TESTED_IN.values():
        assert Path(__file__).with_name(file).is_file(), file


def output_of(folder: Path, *words: str) -> str:
    """The output of a command that must succeed."""
    done = run_tpuctl(*words, folder=folder, timeout=300)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def commands_in(output: str) -> dict[str, list[str]]:
    """The suggested commands in the output, by name."""
    lines = [shlex.split(line) for line in output.splitlines() if line.startswith("    tpuctl ")]
    return {words[1]: words[1:] for words in lines}


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("template", JOBS)
def test_template_lifecycle(
    local_cloud: server_process.LocalCloud, tmp_path: Path, template: str
) -> None:
    arguments, logged = JOBS[template]
    then = commands_in(output_of(tmp_path, "init", template, "--name", f"t-{template}"))
    assert list(then) == ["doctor", "up", "run", "down"]
    if template == "empty":  # has no script
        assert then["run"] == ["run", "SCRIPT"]
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "train.py").write_text("print('hello')\n", "utf-8")
        then["run"] = ["run", "job/train.py"]
    after_up = commands_in(output_of(tmp_path, *then["up"], "--yes"))
    try:
        assert after_up["run"] == then["run"]
        after_run = output_of(tmp_path, *after_up["run"], "--", *arguments)
        assert logged in after_run
        job_page = output_of(tmp_path, *commands_in(after_run)["jobs"])
        assert "succeeded" in job_page
        output_of(tmp_path, *commands_in(job_page)["report"])
    finally:
        after_down = output_of(tmp_path, *then["down"], "--yes")
    assert "No billable resources are left except bucket/" in after_down
    deleted = output_of(tmp_path, *commands_in(after_down)["down"], "--yes")
    assert "No billable resources are left.\n" in deleted
