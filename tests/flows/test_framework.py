"""The runtime and the workers of a job's framework, from `plan` to the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Diagnostic
from tpuctl.model.events import Event, StepFinished, WarningIssued

# Machines have no JAX: a job that does without it.
SCRIPT = "try:\n    import jax\nexcept ImportError:\n    print('no jax')\n"


def runtime_warnings(events: list[Event]) -> list[Diagnostic]:
    """Without those about quota, which other tests use too."""
    issued = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    return [each for each in issued if each.summary == "Runtime is for another framework"]


async def test_plan_shows_runtime_of_framework(project: Project) -> None:
    bench = project.stack()
    (bench.folder / "requirements.txt").write_text("jax[tpu]\n", "utf-8")
    code, out, errors = bench.type("plan")
    assert code == 0, errors
    assert "creating v3-8 with tpu-ubuntu2204-base for JAX (requirements.txt)" in " ".join(
        out.split()
    )
    plan = bench.answer("plan")["data"]
    assert (plan["framework"], plan["runtime"]) == ("jax", "tpu-ubuntu2204-base")


async def test_another_file_does_not_change_a_node(project: Project) -> None:
    bench = project.stack()
    file = bench.folder / "train.py"
    file.write_text("import jax\n", "utf-8")
    stack = bench.reopen()
    await stack.provision(await stack.plan())
    assert (await stack.node()).runtime == "tpu-ubuntu2204-base"

    file.write_text("import tensorflow\n", "utf-8")
    assert (await bench.reopen().plan()).plan.is_empty
    code, _, errors = bench.type("plan")
    assert code == 0, errors

    bench.stack.stack_file.write_text(
        bench.stack.stack_file.read_text("utf-8") + "job: {framework: tensorflow}\n", "utf-8"
    )
    with pytest.raises(Conflict, match="tpu-ubuntu2204-base"):
        await bench.reopen().plan()


async def test_script_decides_runtime_of_run_up(
    make_stack: Callable[..., Tpuctl], events: list[Event]
) -> None:
    stack = make_stack(type_name="v3-32", zone="europe-west4-a", runtime="auto")
    folder = stack.stack_file.parent / "jobs" / "small"  # not where the stack looks by itself
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    assert stack.stack.runtime.tensorflow is not None
    assert await stack.run(folder / "train.py", up=True) == 0
    assert (await stack.node()).runtime == "tpu-ubuntu2204-base"
    record = await stack.job()
    assert (record.framework, record.runtime) == ("jax", "tpu-ubuntu2204-base")
    assert record.workers == (0, 1, 2, 3)
    results = [event.because for event in events if isinstance(event, StepFinished)]
    assert "v3-32 in europe-west4-a, JAX (train.py) on 4 workers" in results
    assert runtime_warnings(events) == []
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_run_warns_of_existing_runtime(
    make_stack: Callable[..., Tpuctl], events: list[Event]
) -> None:
    """JAX still runs on all workers, which it must."""
    stack = make_stack(type_name="v3-32", zone="europe-west4-a", runtime="auto")
    await stack.provision(await stack.plan())
    node = await stack.node()
    assert "-pod-" in node.runtime
    script = stack.stack_file.parent / "train.py"
    script.write_text(SCRIPT, "utf-8")
    record = await stack.submit(script)
    assert record.workers == (0, 1, 2, 3)
    assert record.runtime == node.runtime
    (warning,) = runtime_warnings(events)
    assert "job: {framework: jax}" in warning.hint
    assert (await stack.down(delete_bucket=True)).leaks == ()
