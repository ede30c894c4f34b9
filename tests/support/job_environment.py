"""A Python for a bundled job, created as a machine and the job's supervisor create it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.machine_folder import machine_folder
from tpuctl.local_cloud.machine_images import ImageStore

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "templates" / "jobs" / "bert-pretraining"
WIKIPEDIA = JOB.with_name("korean-wikipedia")
TENSORFLOW = "2.18.0"


def job_python(job: Path = JOB) -> Path:
    """Return the interpreter of a job's environment, creating and caching it if missing.

    TPUCTL_TEST_JOB_PYTHON selects another interpreter.
    """
    override = os.environ.get("TPUCTL_TEST_JOB_PYTHON")
    if override:
        return Path(override)
    store = ImageStore()
    image = asyncio.run(store.ensure(TENSORFLOW, lambda line: print(line, file=sys.stderr)))
    home = store.cache / "job-tests"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "code").mkdir()
        shutil.copy(job / "requirements.txt", Path(folder, "code"))
        spec = {"install": {"requirements": "requirements.txt"}}
        Path(folder, "spec.json").write_text(json.dumps(spec), "utf-8")
        installer = machine_folder() / "environment.py"
        arguments = ["create", folder, image / "bin" / "python3"]
        result = subprocess.run(
            [image / "bin" / "python3", "-S", "-I", installer, *arguments],
            env={**os.environ, "HOME": str(home), "PIP_CACHE_DIR": str(store.downloads)},
            capture_output=True,
            text=True,
            check=False,
        )
        log = Path(folder, "log")
        if result.returncode:
            log_text = log.read_text("utf-8", "replace") if log.exists() else ""
            raise RuntimeError(
                f"no environment for the job:\n{log_text}{result.stdout}{result.stderr}"
            )
        environment = json.loads(Path(folder, "environment.json").read_text("utf-8"))
    return Path(environment["virtual_env"], "bin", "python")
