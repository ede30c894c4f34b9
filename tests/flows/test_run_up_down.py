"""`run --up --down`: the stack is taken down whatever happens to the job, and the exit code is that
of the first error."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.polling import until
from tests.support.projects import Bench, Project
from tests.support.stack_jobs import read_until
from tests.support.subprocesses import run_captured
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.errors import Refused
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

MakeStack = Callable[..., Tpuctl]
ENDLESS = "import time\nprint('it runs', flush=True)\nwhile True: time.sleep(0.1)\n"


def script(stack: Tpuctl, text: str) -> str:
    folder = stack.stack_file.parent / "job"
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(text, "utf-8")
    return "job/job.py"


def start(stack: Tpuctl, *arguments: str) -> subprocess.Popen[str]:
    """Start a command like a CI system, without a terminal."""
    return subprocess.Popen(
        [forked_tpuctl(), *arguments],
        cwd=stack.stack_file.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def remaining_resources(stack: Tpuctl) -> list[str]:
    """Addresses of a stack's billable resources, except for its bucket."""
    items = asyncio.run(Tpuctl(stack.stack_file, cloud="local").status()).inventory
    return [item.address for item in items if item.is_billable and item.kind != "bucket"]


def delete_stack(stack: Tpuctl) -> None:
    asyncio.run(Tpuctl(stack.stack_file, cloud="local").down(delete_bucket=True))


def test_run_up_down_with_failing_job(make_stack: MakeStack) -> None:
    stack = make_stack()
    job = script(stack, "print('hello', flush=True)\nraise SystemExit(6)\n")
    done = run_captured(
        [forked_tpuctl(), "run", "--up", "--down", "--yes", "--json", job],
        cwd=stack.stack_file.parent,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"]) == (6, 6), done.stderr
    assert (answer["data"]["state"], answer["data"]["job_exit_code"]) == ("failed", 6)
    states = {
        resource["address"].split("/")[0]: resource["state"]
        for resource in answer["data"]["remaining"]
    }
    assert (states["node"], states["bucket"]) == ("deleted", "kept")
    assert remaining_resources(stack) == []
    log = asyncio.run(read_log(stack))
    assert log == b"hello\n", "the bucket with the job is kept"
    delete_stack(stack)


async def read_log(stack: Tpuctl) -> bytes:
    again = Tpuctl(stack.stack_file, cloud="local")
    record = await again.job()
    return await again.store.get_bytes(record.log_name(0))


def test_ctrl_c_detaches_and_second_ctrl_c_stops_and_takes_down(make_stack: MakeStack) -> None:
    stack = make_stack()
    folder = stack.stack_file.parent
    job = script(stack, ENDLESS)
    with Terminal(folder, "run", "--up", "--down", "--yes", job) as terminal:
        terminal.wait_for("it runs\n")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
        assert "The stack stays up for it and is charged" in terminal.sentences
        [wait, down] = [
            line.split()
            for line in terminal.output.splitlines()
            if line.split()[:2] in (["tpuctl", "wait"], ["tpuctl", "down"])
        ]
    assert remaining_resources(stack) != []
    assert down == ["tpuctl", "down"]
    with start(stack, *wait[1:], "--timeout", "0.5s") as waiting:
        _, stderr = waiting.communicate(timeout=60)
    assert waiting.returncode == 124, stderr
    assert "is still running" in stderr
    with start(stack, "stop", wait[2]) as stopping:
        assert stopping.wait(60) == 0
    with Terminal(folder, "run", "--down", job) as terminal:
        terminal.wait_for("it runs\n")
        terminal.press_ctrl_c()
        terminal.wait_for("Ctrl-C again within")
        terminal.press_ctrl_c()
        assert terminal.end() == 143
        assert "was stopped" in terminal.output
        assert "No billable resources are left except bucket/" in terminal.sentences
    assert remaining_resources(stack) == []
    delete_stack(stack)


@pytest.mark.soak
def test_cancelled_ci_job_leaves_nothing(make_stack: MakeStack) -> None:
    """SIGINT without a terminal, which some CI systems send before SIGKILL."""
    stack = make_stack()
    job = script(stack, ENDLESS)
    with start(stack, "run", "--up", "--down", "--yes", job) as running:
        read_until(running, "it runs\n")
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=90)
    assert running.returncode == 143, stderr
    assert "it has 5 seconds to exit" in stderr
    assert remaining_resources(stack) == []
    delete_stack(stack)


@pytest.mark.soak
def test_failed_down_is_reported_with_exit_code(
    make_stack: MakeStack, local_cloud: LocalCloud
) -> None:
    """With the job's exit code if it failed, otherwise with that of `down`."""
    stack = make_stack()
    job = script(stack, ENDLESS)
    denied = {"method": "DeleteNode", "name": stack.stack.names.node, "times": "unlimited"}
    fault = remote_control.add_fault(local_cloud, "deny", **denied)
    with start(stack, "run", "--up", "--down", "--yes", job) as running:
        read_until(running, "it runs\n")
        running.terminate()
        running.send_signal(signal.SIGINT)  # sent by some CI systems
        _, stderr = running.communicate(timeout=90)
    assert running.returncode == 143, stderr
    assert "error: Cannot take the stack down" in stderr
    assert "tpuctl down" in stderr
    assert remaining_resources(stack) != []
    with start(stack, "stop") as stopping:  # its machine is still there, and so it may run
        stopping.communicate(timeout=90)
    job = script(stack, "print('well done')\n")
    with start(stack, "run", "--up", "--down", "--yes", "--wait", job) as running:
        out, stderr = running.communicate(timeout=90)
    assert (running.returncode, out) == (77, "well done\n"), stderr
    remote_control.remove_fault(local_cloud, fault["id"])
    delete_stack(stack)
    assert remaining_resources(stack) == []


def stack_and_job(project: Project) -> tuple[Bench, str]:
    bench = project.stack()
    return bench, script(bench.stack, "print('never')\n")


async def test_failed_up_is_taken_down(project: Project, null_cloud: LocalCloud) -> None:
    bench, job = stack_and_job(project)
    remote_control.add_fault(null_cloud, "stockout", project=project.id, times="unlimited")
    code, out, stderr = await asyncio.to_thread(bench.type, "run", "--up", "--down", "--yes", job)
    assert (code, out) == (75, ""), stderr
    assert stderr.index("error: ") < stderr.index("delete account/"), "the error comes first"
    kinds = {item.kind for item in (await bench.reopen().status()).inventory}
    assert kinds == {"bucket"}


async def test_interrupted_up_is_taken_down(project: Project, null_cloud: LocalCloud) -> None:
    bench, job = stack_and_job(project)
    node = bench.stack.stack.names.node
    fault = remote_control.add_fault(null_cloud, "hold", method="CreateNode", name=node)

    def interrupt() -> tuple[int, str]:
        with start(bench.stack, "run", "--up", "--down", "--yes", job) as running:

            def is_held() -> bool:
                assert running.poll() is None
                return bool(remote_control.fault(null_cloud, fault["id"])["applied"])

            until(is_held, "the creation being held")
            running.terminate()
            assert running.stderr is not None
            interruption = next(line for line in running.stderr if "error: Interrupted" in line)
            # `down` begins while the request of the creation is still in progress.
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(0.5)
            remote_control.release(null_cloud, fault["id"])
            _, stderr = running.communicate(timeout=90)
            return running.returncode, interruption + stderr

    code, stderr = await asyncio.to_thread(interrupt)
    assert code == 143, stderr
    kinds = {item.kind for item in (await bench.reopen().status()).inventory}
    assert kinds == {"bucket"}


async def test_rejected_run_changes_nothing(project: Project) -> None:
    bench, job = stack_and_job(project)
    await bench.provision()
    (bench.folder / "job" / "broken.py").write_text("if\n", "utf-8")
    for code, *arguments in (
        (2, "--down", "job/absent.py"),
        (65, "--down", "--up", "--yes", "job/broken.py"),
        (2, "--down", "--detach", job),
        (2, "--down", "--secret", "NOT_SET_HERE", job),
        (2, "--down", "--timeout", "soon", job),
    ):
        done, _, stderr = await asyncio.to_thread(bench.type, "run", *map(str, arguments))
        assert done == code, stderr
        assert "delete node" not in stderr
    assert (await bench.stack.node()).state == "READY"
    bench, job = stack_and_job(project)
    done, _, stderr = await asyncio.to_thread(bench.type, "run", "--up", "--down", job)
    assert (done, "Not confirmed" in stderr) == (2, True)
    assert (await bench.reopen().status()).inventory == ()


async def test_python_api_run_up_down(make_stack: MakeStack) -> None:
    stack = make_stack()
    folder = stack.stack_file.parent
    job = folder / script(stack, "raise SystemExit(3)\n")
    with pytest.raises(Refused):
        broken = folder / "broken.py"
        broken.write_text("if\n")
        await stack.run(broken, up=True, down=True)
    assert (await stack.status()).inventory == (), "nothing was created"
    assert await stack.run(job, up=True, down=True) == 3
    assert [item.kind for item in (await stack.status()).inventory] == ["bucket"]
    await stack.down(delete_bucket=True)
