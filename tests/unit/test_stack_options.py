"""Contradicting options of a stack file, and the resolved values of valid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stacks import bert_stack, stack_from
from tpuctl.errors import InvalidStack, Usage
from tpuctl.model.stack.stack import minimal_stack
from tpuctl.model.text.duration import seconds_of


@pytest.mark.parametrize(
    ("text", "summary", "line"),
    [
        ("tpu: {type: v5litepod-8, kind: node}", "TPU type not available as TPU node", 3),
        ("tpu: {type: v3-8, kind: node, runtime: 2.12.9}", "Unknown runtime", 3),
        ("tpu: {type: v3-8, kind: node, queue: true}", "Not for TPU nodes", 3),
        ("tpu: {type: v3-8, kind: node, capacity: spot}", "Not for TPU nodes", 3),
        (
            "tpu: {type: v3-8, kind: node}\nnetwork: {node_range: 10.0.0.1/29}",
            "Invalid value",
            4,
        ),
        (
            "tpu: {type: v3-8, kind: node}\nnetwork: {node_range: 10.0.0.0/30}",
            "Address range too small",
            4,
        ),
        ("tpu: {type: v3-8}\nnetwork: {node_range: 10.0.0.0/29}", "Only for TPU nodes", 4),
        ("tpu: {type: v4-32, topology: 2x2x1}", "Topology incompatible with TPU type", 3),
        ("tpu: {type: v4-32, topology: wide}", "Topology incompatible with TPU type", 3),
        ("tpu: {type: v5litepod-8, capacity: flex-start}", "Flex-start without a duration", 3),
        (
            "tpu: {type: v5litepod-8, capacity: flex-start, queue: true}",
            "Flex-start without a duration",
            3,
        ),
        ("tpu: {type: v5litepod-8, queue: {run_for: 4h}}", "Run duration without flex-start", 3),
        (
            "tpu: {type: v5litepod-8, capacity: flex-start, queue: {run_for: 8d}}",
            "Run duration too long",
            3,
        ),
        (
            "tpu: {type: v5litepod-8, capacity: spot, queue: {guaranteed: true}}",
            "Capacity cannot be guaranteed",
            3,
        ),
        (
            "tpu: {type: v5litepod-8, queue: {reservation: mine}}",
            "Reservation without reserved capacity",
            3,
        ),
        (
            "tpu: {type: v3-8, capacity: flex-start, queue: {run_for: 4h}}",
            "Flex-start not available",
            3,
        ),
        (
            "tpu: {type: v5litepod-8, capacity: reserved, queue: {reservation: a/b}}",
            "Invalid value",
            3,
        ),
        ("tpu: {type: v3-8, queue: maybe}", "Invalid value", 3),
        ("tpu: {type: v3-8, queue: {valid_until: 2026-01-31}}", "Invalid value", 3),
        ("tpu: {type: v3-8, queue: {valid_until: '2026-01-31'}}", "Invalid value", 3),
        ("tpu: {type: v3-8, queue: {valid_until: 2026-01-31T18:00:00}}", "Invalid value", 3),
        ("tpu: {type: v3-8, queue: {valid_until: '2026-99-31T18:00:00Z'}}", "Invalid value", 3),
        (
            "tpu: {type: v3-8, queue: {nodes: 2}, data_disks: [{size_gb: 20}]}",
            "Disk cannot be shared read-write",
            3,
        ),
        (
            "tpu: {type: v3-8, queue: {nodes: 2}}\njob: {workers: [1, 2]}",
            "No such worker",
            4,
        ),
        ("tpu: {type: v3-8, data_disks: [{}]}", "Invalid data disk", 3),
        (
            "tpu: {type: v3-8, data_disks: [{name: a, size_gb: 20}]}",
            "Invalid data disk",
            3,
        ),
        ("tpu: {type: v3-32, data_disks: [{name: a}]}", "Disk cannot be shared read-write", 3),
        ("tpu: {type: v3-8, startup_script: none.sh}", "No such file", 3),
        (
            "tpu: {type: v5litepod-8, zones: [us-west4-a, europe-west4-b]}",
            "Bucket outside the TPU's region",
            3,
        ),
    ],
)
def test_invalid_combinations(tmp_path: Path, text: str, summary: str, line: int) -> None:
    with pytest.raises(InvalidStack) as caught:
        bert_stack(tmp_path, text)
    (problem,) = caught.value.diagnostics
    assert problem.summary == summary
    assert problem.where.endswith(f":{line}")
    assert problem.hint


def test_parent_requires_new_project(tmp_path: Path) -> None:
    with pytest.raises(InvalidStack, match="Parent of an existing project"):
        stack_from(tmp_path, "project: {id: my-project, parent: folders/1}\ntpu: {type: v3-8}\n")
    with pytest.raises(InvalidStack) as caught:
        bert_stack(tmp_path, "tpu: {type: v3-8, data_disks: [{size: 20}]}")
    assert caught.value.diagnostics[0].hint == "Did you mean size_gb?"


def test_zones_in_several_regions_require_allow_egress(tmp_path: Path) -> None:
    stack = bert_stack(
        tmp_path,
        "tpu: {type: v5litepod-8, zones: [us-west4-a, europe-west4-b]}\n"
        "bucket: {allow_egress: true}",
    )
    assert stack.bucket_location == "us-west4"  # next to the first zone
    assert stack.in_zone("europe-west4-b").bucket_location == "us-west4"
    assert stack.in_zone("europe-west4-b").region == "europe-west4"


def test_node_has_controller_and_version(tmp_path: Path) -> None:
    stack = bert_stack(tmp_path, "tpu: {type: v3-8, kind: node, runtime: 2.12.0}")
    assert stack.is_node
    assert stack.controller is not None
    assert stack.runtime.version == stack.runtime.tensorflow == "2.12.0"
    assert bert_stack(tmp_path, "tpu: {type: v3-8}").controller is None
    assert bert_stack(tmp_path, "tpu: {type: v3-8}\ncontroller: {}").controller is not None


def test_nodes_of_queue_are_numbered(tmp_path: Path) -> None:
    assert bert_stack(tmp_path, "tpu: {type: v3-8, queue: true}").nodes == ("bert-tpu",)
    several = bert_stack(tmp_path, "tpu: {type: v3-8, queue: {nodes: 3}}")
    assert several.nodes == ("bert-tpu-0", "bert-tpu-1", "bert-tpu-2")
    assert bert_stack(tmp_path, "tpu: {type: v3-8, queue: false}").queue is None
    queue = bert_stack(
        tmp_path, "tpu: {type: v3-8, queue: {valid_until: 2026-01-31T18:00:00Z}}"
    ).queue
    assert queue is not None
    assert queue.valid_until == "2026-01-31T18:00:00+00:00"
    stack = bert_stack(tmp_path, "tpu: {type: v3-8}\nlabels: {team: nlp}")
    assert stack.labels == {"team": "nlp", "tpuctl-stack": "bert"}


@pytest.mark.parametrize(
    ("text", "count", "workers"),
    [
        ("tpu: {type: v3-8, queue: {nodes: 3}, runtime: tpu-ubuntu2204-base}", 3, (0, 1, 2)),
        ("tpu: {type: v3-32, queue: {nodes: 2}, runtime: tpu-ubuntu2204-base}", 8, (*range(8),)),
        ("tpu: {type: v3-8, queue: {nodes: 3}}", 3, (0,)),  # TensorFlow
        ("tpu: {type: v3-8, queue: {nodes: 3}}\njob: {workers: all}", 3, (0, 1, 2)),
        ("tpu: {type: v3-8, queue: {nodes: 3}}\njob: {workers: [2]}", 3, (2,)),
        ("tpu: {type: v3-8, kind: node}", 1, (0,)),
    ],
)
def test_workers_are_numbered_through_all_nodes(
    tmp_path: Path, text: str, count: int, workers: tuple[int, ...]
) -> None:
    stack = bert_stack(tmp_path, text)
    assert (stack.worker_count, stack.job_workers()) == (count, workers)


def test_minimal_stack_has_same_names(tmp_path: Path) -> None:
    whole, bare = bert_stack(tmp_path, "tpu: {type: v3-8}"), minimal_stack("bert", "my-project")
    assert bare.names == whole.names
    assert bare.bucket == whole.bucket
    with pytest.raises(Usage, match="--stack"):
        minimal_stack("No", "my-project")
    with pytest.raises(Usage, match="--project"):
        minimal_stack("bert", "x")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("6h", 21600), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
