"""Scripts, modules and commands with their dependencies, run on machines of the local cloud."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.wheels import make_project, make_wheel
from tpuctl.api import Tpuctl
from tpuctl.errors import Refused
from tpuctl.model.jobs.installation import Installation
from tpuctl.view.responses.jobs import Job

MakeStack = Callable[..., Tpuctl]
BASH = """#!/usr/bin/env bash
set -euo pipefail
declare -A steps=([first]=1)
echo "bash with $# words: $* (${steps[first]})"
python -m bert.train "$@"
exit 9
"""


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack(
        extra="job: {env: {PIP_INDEX_URL: 'http://127.0.0.1:9/', PIP_RETRIES: '0'}}\n"
    )
    await stack.up()
    yield stack
    await stack.down(delete_bucket=True)


async def run_in(stack: Tpuctl, folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command run in that folder."""
    option = ("--stack-file", str(stack.stack_file))
    done = await asyncio.to_thread(run_tpuctl, *option, *words, folder=folder, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.soak
async def test_run_starts_modules_and_commands(stack: Tpuctl, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "src/bert").mkdir(parents=True)
    (folder / "src/bert/train.py").write_text(
        "import sys\nimport jax, torch\nprint(jax.name, torch.name, sys.argv[1:])\n"
    )
    for name in ("jax", "torch"):  # stand-ins for packages that no image here has
        (folder / f"src/{name}.py").write_text(f"name = '{name}'\n")
    (folder / "train.sh").write_text(BASH)
    (folder / "train.sh").chmod(0o755)
    code, out, err = await run_in(stack, folder, "run", "-m", "bert.train", "--", "--steps", "3")
    assert (code, out) == (0, "jax torch ['--steps', '3']\n"), err
    code, out, _ = await run_in(stack, folder, "run", "--", "./train.sh", "--x", "1 2")
    assert (code, out) == (9, "bash with 2 words: --x 1 2 (1)\njax torch ['--x', '1 2']\n")
    code, out, _ = await run_in(stack, tmp_path, "run", "project/train.sh", "--", "again")
    assert (code, out) == (9, "bash with 1 words: again (1)\njax torch ['again']\n")

    # The order of jobs that were submitted within the same second is that of their words.
    jobs = [Job.model_validate(job) for job in await stack.jobs()]
    assert sorted((job.kind, job.script, job.args) for job in jobs) == [
        ("module", "bert.train", ["--steps", "3"]),
        ("shell", "./train.sh", ["--x", "1 2"]),
        ("shell", "./train.sh", ["again"]),
    ]


@pytest.mark.soak
async def test_slice_installs_from_bundled_wheels_without_index(make_stack: MakeStack) -> None:
    stack = make_stack(
        type_name="v4-16",
        zone="us-central2-b",
        extra="job:\n  env: {PIP_INDEX_URL: 'http://127.0.0.1:9/'}\n  wheels: vendor\n"
        "  setup: ./prepare.sh\n",
    )
    await stack.up()
    if not stack.endpoint.runs_startup_scripts:
        pytest.skip("setup commands are refused on this computer")
    folder = stack.stack_file.parent / "project"
    make_project(
        folder,
        "model",
        "import small_library as s\nname = 'model on ' + s.__version__\n",
        dependencies=["small-library"],
    )
    make_wheel(folder / "vendor", "small-library", "3.0")
    (folder / ".gitignore").write_text("*.whl\n")
    (folder / "prepare.sh").write_text("#!/bin/sh\necho once >> ~/prepared\n")
    (folder / "prepare.sh").chmod(0o755)
    (folder / "job.py").write_text(
        "import model, pathlib\n"
        "print(model.name, pathlib.Path('~/prepared').expanduser().read_text().split())\n"
    )
    done = []
    for _ in range(2):
        record = await stack.submit(folder / "job.py")
        assert record.workers == (0, 1)
        assert await stack.follow(record) == 0
        for worker in record.workers:
            log = (await stack.store.get_bytes(record.log_name(worker))).decode()
            assert log.splitlines()[-1] == "model on 3.0 ['once']"
            done += re.findall(r"tpuctl: (.*) in [\d.]+ s", log)
    # One worker installs for both, and the second job needs nothing.
    assert sorted(text for text in done if not text.startswith("unpacked uv ")) == [
        "installed the dependencies in pyproject.toml (1 package, stored in the bucket)",
        "installed the project (1 package, stored in the bucket)",
        "ran the setup command",
        "ran the setup command",
        "unpacked the dependencies in pyproject.toml from the bucket (1 package)",
        "unpacked the project from the bucket (1 package)",
    ]
    assert record.installation.model_copy(update={"uv": None}) == Installation(
        dependencies=("small-library",), project=".", wheels="vendor", setup="./prepare.sh"
    )
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_failed_installation_shows_output_of_installer(stack: Tpuctl, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    make_wheel(folder, "small-library", "3.0", requires=["absent-library>=7"])
    (folder / "requirements.txt").write_text("./small_library-3.0-py3-none-any.whl\n")
    (folder / "job.py").write_text("print('never')\n")
    code, out, err = await run_in(stack, folder, "run", "job.py")
    assert code == 1
    assert "tpuctl: installing requirements.txt\n" in out
    assert "absent-library" in out
    assert "never" not in out
    assert "requirements.txt could not be installed: 127.0.0.1:9 cannot be reached" in err


async def test_setup_commands_are_rejected_without_isolation(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack(extra="job: {setup: 'true'}\n")
    endpoint = replace(stack.cloud.endpoint, runs_startup_scripts=False)
    monkeypatch.setattr(stack.cloud, "endpoint", endpoint)
    (tmp_path / "job.py").write_text("")
    with pytest.raises(Refused, match="Setup commands are disabled"):
        await stack.submit(tmp_path / "job.py")
