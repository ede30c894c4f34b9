"""Jobs exported as a JobSet: what is uploaded, and what the pods' command does on machines."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.support.jobset_schema import jobset_validator
from tests.support.pods import Container, containers_of
from tests.support.projects import Bench, Project, provision
from tests.support.python_mirror import portable_interpreter
from tests.support.wheels import make_wheel
from tpuctl import assets
from tpuctl.api import Tpuctl
from tpuctl.jobs.jobset import JobSetSettings
from tpuctl.remote.transport import Transport
from tpuctl.view.schemas import envelope_schema

pytestmark = pytest.mark.long
MakeStack = Callable[..., Tpuctl]
REPORT = """
import json, os, sys
import small_library
names = ("JOB", "ATTEMPT", "WORKER", "WORKERS", "BUCKET", "OUTPUT", "PROGRAMS", "SPEC")
variables = {name: os.environ.get(f"TPUCTL_{name}") for name in names}
print(json.dumps({**variables, "argv": sys.argv, "price": os.environ["PRICE"],
                  "proxy": os.environ["http_proxy"], "token": os.environ["TOKEN"],
                  "cwd": os.listdir(".")}), flush=True)
sys.exit(int(os.environ["TPUCTL_WORKER"]))
"""
SETTINGS = """
network: {proxy: "http://proxy.invalid:3128"}
job:
  workers: all
  env: {PRICE: "$5 $$ $(HOME)"}
  secrets: {TOKEN: env}
"""


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack(type_name="v4-16", zone="us-central2-b", extra=SETTINGS)
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


async def run_pod(machine: Transport, container: Container) -> tuple[int, str]:
    """Run the command in a new home folder, with the network and the account of a machine.

    Returns the exit code and the output; until then, they are `~/pod` (its PID) and `~/pod.log`.
    """
    home = (await machine.run(["mktemp", "-d"])).stdout.decode().strip()
    variables = {**container.environment, "HOME": home}
    pairs = [f"{name}={value}" for name, value in variables.items()]
    start = 'echo $$ > ~/pod; exec "$@" > ~/pod.log 2>&1'
    result = await machine.run(["sh", "-c", start, "sh", "env", *pairs, *container.argv])
    return result.exit_code, await log_on(machine)


async def log_on(machine: Transport) -> str:
    return (await machine.run(["sh", "-c", "cat ~/pod.log || :"])).stdout.decode()


async def test_pods_run_exported_job(stack: Tpuctl) -> None:
    script = write_job(stack)
    arguments = ["--price", "$(PRICE)$$"]
    exported = await stack.export_jobset(script, arguments, name="bert-1", check=False)
    # Failures of several workers are reported late; here, at once.
    manifest = exported.manifest.replace('"workers": 2', '"workers": 2, "peer_seconds": 0')
    secrets = {f"{stack.stack.name}-secrets": {"TOKEN": "hush"}}
    containers = containers_of(manifest, restarts=2, secrets=secrets)
    async with stack.connections() as machines:
        results = await asyncio.gather(
            *(run_pod(machines[worker], pod) for worker, pod in enumerate(containers))
        )
    for worker, (exit_code, log) in enumerate(results):
        assert exit_code == worker, log
        (report,) = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        output = f"gs://{stack.stack.bucket}/tpuctl/jobs/bert-1/output"
        assert report == {
            "JOB": "bert-1",
            "ATTEMPT": "3",
            "WORKER": str(worker),
            "WORKERS": "2",
            "BUCKET": stack.stack.bucket,
            "OUTPUT": output,
            "PROGRAMS": None,
            "SPEC": None,
            "argv": ["train.py", "--price", "$(PRICE)$$"],
            "price": "$5 $$ $(HOME)",
            "proxy": "http://proxy.invalid:3128",
            "token": "hush",
            "cwd": report["cwd"],
        }
        assert sorted(report["cwd"]) == ["requirements.txt", "train.py", "wheels"]

    # Without its files: a corrupt download may succeed later, a deleted one never.
    manifest = manifest.replace("DELAYS = (1, 2, 4, 8, 16, 32)", "DELAYS = (0,)")
    container = containers_of(manifest, secrets=secrets)[0]
    programs = container.environment["TPUCTL_PROGRAMS"]
    for damage, code, message in (
        (stack.store.put_bytes(programs, b"corrupt"), 75, "checksum mismatch"),
        (stack.store.delete(programs), 1, "HTTP Error 404"),
    ):
        await damage
        async with stack.connections() as machines:
            exit_code, log = await run_pod(machines[0], container)
        name = f"gs://{stack.stack.bucket}/{programs}"
        assert f"tpuctl: cannot download {name}: {message}" in log
        assert exit_code == code


@pytest.mark.soak
@pytest.mark.usefixtures("pythons")
async def test_pods_run_on_the_python_of_the_job(stack: Tpuctl) -> None:
    """Not on that of the container's image, which has no say in it."""
    script = write_job(stack)
    script.write_text("import small_library, sys\nprint(sys.version.split()[0])\n")
    exported = await stack.export_jobset(script, (), check=False, python="3.13")
    secrets = {f"{stack.stack.name}-secrets": {"TOKEN": "hush"}}
    pods = containers_of(exported.manifest, secrets=secrets)
    async with stack.connections() as machines:
        results = [await run_pod(machines[worker], pod) for worker, pod in enumerate(pods)]
    version = portable_interpreter("3.13").version
    assert [(code, log.splitlines()[-1]) for code, log in results] == [(0, version)] * 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("pythons")
async def test_evicted_pods_of_slice_resume(make_stack: MakeStack) -> None:
    """The template for JAX on two hosts: saved at SIGTERM, then restarted by JobSet."""
    extra = "job: {workers: all, framework: jax, env: {PIP_RETRIES: '0'}}\n"
    stack = make_stack(type_name="v4-16", zone="us-central2-b", extra=extra)
    folder = stack.stack_file.parent / "jax"
    shutil.copytree(assets.templates() / "jobs/jax", folder)
    await stack.up()
    arguments = ["--steps", "40", "--batch", "16", "--log-every", "2", "--save-every", "1000"]
    settings = JobSetSettings(image="python:3.10")  # as the machines that stand for pods have
    exported = await stack.export_jobset(folder / "train.py", arguments, settings, name="bert-1")

    async def attempt(machines: Mapping[int, Transport], restarts: int) -> list[tuple[int, str]]:
        pods = enumerate(containers_of(exported.manifest, restarts=restarts))
        return await asyncio.gather(*(run_pod(machines[worker], pod) for worker, pod in pods))

    async with stack.connections() as machines:
        first = asyncio.ensure_future(attempt(machines, 0))
        async with asyncio.timeout(600):
            while '"step"' not in await log_on(machines[0]):
                await asyncio.sleep(0.2)
        for machine in machines.values():
            await machine.run(["sh", "-c", "kill -TERM $(cat ~/pod)"])
        evicted = await first
        restarted = await attempt(machines, 1)
    assert [exit_code for exit_code, _ in evicted] == [143, 143], evicted
    (step,) = re.findall(r"stopped after step (\d+), which is saved\n", evicted[0][1])
    log = restarted[0][1]
    assert f"resuming after step {step}\n" in log
    assert "from the bucket" in log, "the requirements were installed once"
    assert [exit_code for exit_code, _ in restarted] == [0, 0], restarted
    await stack.down(delete_bucket=True)


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def bench(project: Project) -> Bench:
    """A stack that does not exist yet, with a script in a folder of its own."""
    extra = "job: {framework: jax, secrets: {TOKEN: 'env:LAPTOP'}}"
    bench = project.stack(type_name="v6e-8", zones="us-east5-b", extra=extra)
    (bench.folder / "job").mkdir()
    (bench.folder / "job/train.py").write_text("print('trained')\n", "utf-8")
    return bench


async def test_export_uploads_what_pods_download_once(bench: Bench) -> None:
    await provision(bench.stack)
    store = bench.stack.store

    async def bundles() -> dict[str, int]:
        objects = await store.list("tpuctl/bundles/")
        return {each.name: each.size for each in objects}

    def export(*options: str) -> str:
        command = ("export", "jobset", "job/train.py", "--name", "a", *options, "--", "--x", "1")
        code, out, errors = bench.type(*command)
        assert code == 0, errors
        return out

    first = await asyncio.to_thread(export)
    uploaded = await bundles()
    manifest = yaml.safe_load(first)
    assert list(jobset_validator().iter_errors(manifest)) == []
    secrets = {f"{bench.stack.stack.name}-secrets": {"TOKEN": ""}}
    (container,) = containers_of(first, secrets=secrets)
    assert container.argv[-4:] == ["python", "train.py", "--x", "1"]
    spec = json.loads(container.environment["TPUCTL_SPEC"])
    assert {container.environment["TPUCTL_PROGRAMS"], spec["bundle"]["name"]} < set(uploaded)
    assert await asyncio.to_thread(export, "--no-upload") == first, "equal files, equal names"
    assert await asyncio.to_thread(export) == first
    assert await bundles() == uploaded
    assert [each.name for each in await store.list("tpuctl/jobs/")] == [], "nothing has started"
    assert bench.answer("jobs")["data"] == []


def test_export_writes_new_file_and_says_what_the_cluster_needs(bench: Bench) -> None:
    file = bench.stack.stack_file
    secrets = "'env:LAPTOP', OTHER: 'secret:other@3'"
    file.write_text(file.read_text("utf-8").replace("'env:LAPTOP'", secrets), "utf-8")
    command = ("export", "jobset", "job/train.py", "--no-upload", "-o", "jobset.yaml")
    code, out, errors = bench.type(*command)
    assert code == 0, errors
    assert yaml.safe_load((bench.folder / "jobset.yaml").read_text("utf-8"))["kind"] == "JobSet"
    name = f"{bench.stack.stack.name}-secrets"
    assert out.splitlines() == [
        "jobset.yaml",
        "",
        f"Once, create the secret {name}, with bash:",
        f"    kubectl create secret generic {name} \\",
        '        --from-file=TOKEN=<(printf %s "$LAPTOP") \\',
        "        --from-file=OTHER=<(gcloud secrets versions access 3 --secret=other "
        f"--project={bench.stack.project})",
        "",
        "Next:",
        "    kubectl apply -f jobset.yaml",
    ]
    code, _, errors = bench.type(*command)
    assert code == 1
    assert "jobset.yaml exists and is not overwritten" in errors


def test_export_in_json(bench: Bench) -> None:
    envelope = bench.answer("export", "jobset", "job/train.py", "--no-upload")
    Draft202012Validator(envelope_schema()).validate(envelope)
    data = envelope["data"]
    assert yaml.safe_load(data["text"])["metadata"]["name"] == data["name"]
    assert (data["file"], data["is_uploaded"]) == (None, False)
    assert data["secret"]["name"].endswith("-secrets")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("job/train.py",), 1, "bucket"),
        (("job/absent.py",), 2, "absent.py"),
        ((), 2, "tpuctl export jobset train.py"),
        (("job/train.py", "--no-upload", "--name", "Bert"), 2, "--name cannot be 'Bert'"),
        (("job/train.py", "--no-upload", "--name", "b" * 42), 2, "up to 41"),
        (("job/train.py", "--no-upload", "--queue", "a b"), 2, "--queue cannot be 'a b'"),
        (("job/train.py", "--no-upload", "--service-account", ""), 2, "--service-account cannot"),
    ],
)
def test_export_rejects_bad_input(
    bench: Bench, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    exit_code, out, errors = bench.type("export", "jobset", *arguments)
    assert (exit_code, out) == (code, ""), errors
    assert expected in errors
    assert "Traceback" not in errors
