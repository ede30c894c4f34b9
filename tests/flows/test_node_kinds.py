"""Other TPU nodes: for PyTorch, and with service networking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import long_operation
from tpuctl.errors import TpuctlError
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes
from tpuctl.model.plan import Action


async def test_pytorch_node(project: Project) -> None:
    """Without TensorFlow jobs start on every worker; here the controller is the only machine."""
    bench = project.stack("kind: node, runtime: pytorch-1.13", type_name="v3-32")
    await bench.provision()
    node = await bench.stack.node()
    assert (node.state, node.runtime) == ("READY", "pytorch-1.13")
    assert len(node.endpoints) == 4
    job = Submission.of(bench.stack.stack, Path("train.py"), cloud="local")
    job = await bind_to_nodes(job, bench.stack.stack, bench.stack.cloud, [node])
    assert (job.workers, job.worker_count) == ((0,), 1)
    assert job.machines.endpoints == node.endpoints
    assert job.machines.first_access is not None
    assert (await bench.stack.plan()).plan.is_empty
    assert (await bench.stack.down(delete_bucket=True)).leaks == ()


async def test_pytorch_node_is_unsupported_on_local_cloud_machines(
    make_stack: Callable[..., Tpuctl],
) -> None:
    stack = make_stack(runtime="pytorch-1.13, kind: node")
    with pytest.raises(TpuctlError, match=r"No image for TPU node version pytorch-1\.13"):
        await stack.up()
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_node_with_service_networking(project: Project) -> None:
    """The peering chooses the range: none is searched or sent, and any is accepted."""
    bench = project.stack("kind: node", "network: {node_range: service-networking}")
    await bench.provision()
    stack = bench.stack.stack
    path = f"projects/{project.id}/locations/{stack.zone}/nodes/{stack.names.node}"
    node = await bench.call("tpu_v1", "get_node", {"name": path})
    assert node.state.name == "READY"
    assert node.use_service_networking
    assert node.cidr_block
    assert (await bench.stack.plan()).plan.is_empty

    # Another node in the network gets a range next to it.
    other = project.stack("kind: node")
    await other.provision()
    path = path.replace(stack.name, other.stack.stack.name)
    other_node = await other.call("tpu_v1", "get_node", {"name": path})
    assert not other_node.use_service_networking
    assert other_node.cidr_block != node.cidr_block

    # Recreated, it uses service networking again.
    operation = await bench.call("tpu_v1", "delete_node", {"name": node.name})
    await long_operation(
        bench.stack.cloud, "tpu_v1", operation.operation, subject="node", seconds=60
    )
    prepared = await bench.provision()
    assert prepared.plan.change(f"tpu/{stack.names.node}").action is Action.CREATE
    assert (await bench.call("tpu_v1", "get_node", {"name": node.name})).use_service_networking
    for stack_bench in (bench, other):
        assert (await stack_bench.stack.down(delete_bucket=True)).leaks == ()
