"""Jobs exported as a JobSet: the pods' command runs on machines with the account of the stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.pods import Container, containers_of
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.remote.transport import Result, Transport

MakeStack = Callable[..., Tpuctl]
REPORT = """
import json, os, sys
import small_library
names = ("JOB", "ATTEMPT", "WORKER", "WORKERS", "BUCKET", "OUTPUT", "PROGRAMS", "SPEC")
variables = {name: os.environ.get(f"TPUCTL_{name}") for name in names}
print(json.dumps({**variables, "argv": sys.argv, "price": os.environ["PRICE"],
                  "token": os.environ["TOKEN"], "cwd": os.listdir(".")}), flush=True)
sys.exit(int(os.environ["TPUCTL_WORKER"]))
"""
SETTINGS = """
job:
  workers: all
  env: {PRICE: "$5 $$ $(HOME)"}
  secrets: {TOKEN: env}
"""


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack(
        type_name="v5litepod-16",
        runtime="v2-alpha-tpuv5-lite",
        zone="us-west4-a",
        extra=SETTINGS,
    )
    await stack.up()
    yield stack
    await stack.down(delete_bucket=True)


def write_job(stack: Tpuctl) -> Path:
    folder = stack.stack_file.parent / "job"
    folder.mkdir()
    make_wheel(folder / "wheels", "small-library", "1.0")
    (folder / "requirements.txt").write_text("small-library\n", "utf-8")
    (folder / "train.py").write_text(REPORT, "utf-8")
    return folder / "train.py"


async def run_pod(machine: Transport, container: Container) -> Result:
    """Run the command in a new home folder, with the network and the account of a machine."""
    home = (await machine.run(["mktemp", "-d"])).stdout.decode().strip()
    variables = {**container.environment, "HOME": home}
    pairs = [f"{name}={value}" for name, value in variables.items()]
    return await machine.run(["env", *pairs, *container.argv])


async def test_pods_run_exported_job(stack: Tpuctl) -> None:
    script = write_job(stack)
    arguments = ["--price", "$(PRICE)$$"]
    exported = await stack.export_jobset(script, arguments, name="bert-1", check=False)
    # Failures of several workers are reported late; here, at once.
    manifest = exported.manifest.replace('"workers": 4', '"workers": 4, "peer_seconds": 0')
    secrets = {f"{stack.stack.name}-secrets": {"TOKEN": "hush"}}
    containers = containers_of(manifest, restarts=2, secrets=secrets)
    async with stack.connections() as machines:
        results = await asyncio.gather(
            *(run_pod(machines[worker], pod) for worker, pod in enumerate(containers))
        )
    for worker, result in enumerate(results):
        lines = result.stdout.decode().splitlines()
        assert result.exit_code == worker, lines
        (report,) = [json.loads(line) for line in lines if line.startswith("{")]
        output = f"gs://{stack.stack.bucket}/tpuctl/jobs/bert-1/output"
        assert report == {
            "JOB": "bert-1",
            "ATTEMPT": "3",
            "WORKER": str(worker),
            "WORKERS": "4",
            "BUCKET": stack.stack.bucket,
            "OUTPUT": output,
            "PROGRAMS": None,
            "SPEC": None,
            "argv": ["train.py", "--price", "$(PRICE)$$"],
            "price": "$5 $$ $(HOME)",
            "token": "hush",
            "cwd": report["cwd"],
        }
        assert sorted(report["cwd"]) == ["requirements.txt", "train.py", "wheels"]
