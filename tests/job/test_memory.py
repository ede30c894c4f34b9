"""Batch sizes suggested for real out-of-memory messages of devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

BASE = 110_000_000  # weights of BERT base, 16 bytes each: 1.64 GiB
GIB = 1 << 30

# BERT base, 256 sequences of 128 on a v2 core, by the TPU compiler of TensorFlow 2.19.
V2 = "RESOURCE_EXHAUSTED: 8.29G > 7.48G"
# github.com/LargeWorldModel/LWM/issues/60
V3 = """jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm.
 Exceeded hbm capacity by 6.47G.

Total hbm usage >= 22.47G:
    reserved        530.00M
    program          21.95G
"""
# github.com/tensorflow/tpu/issues/385
OLD = """Status code: Resource exhausted [9x]
  Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. \
Exceeded hbm capacity by 385.25M."""
GPU = (
    "ResourceExhaustedError: Graph execution error:\n\nOOM when allocating tensor with shape"
    "[512,128,768] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator "
    "GPU_0_bfc [Op:__inference_loop_1234]"
)


@pytest.mark.parametrize(
    ("text", "used", "room"),
    [(V2, 8.29, 7.48), (V3, 21.95, 15.48), (OLD, 8.38, 8.0)],
    ids=["v2", "v3", "old"],
)
def test_memory_figures_are_parsed(
    job: SimpleNamespace, text: str, used: float, room: float
) -> None:
    sizes = job.memory.used_and_available(text)
    assert [size / GIB for size in sizes] == pytest.approx([used, room])


def test_fitting_share_scales_with_batch_memory(job: SimpleNamespace) -> None:
    # Weights and optimizer 1 GiB, then 1 GiB for each 10 sequences: 50 of them make 6 GiB.
    weights = GIB // 16
    assert (
        job.memory.fitting_share(50, weights, 6 * GIB, 3 * GIB) == 16
    )  # 20, rounded down to a multiple of 8
    assert job.memory.fitting_share(10, weights, 2 * GIB, int(1.5 * GIB)) == 5
    assert job.memory.fitting_share(50, weights, 6 * GIB, GIB // 2) == 0, "not even the weights"
    assert job.memory.fitting_share(8, weights, 6 * GIB, int(5.99 * GIB)) == 7


@pytest.mark.parametrize("text", [V2, V3, OLD])
@pytest.mark.parametrize("replicas", [1, 8])
def test_suggested_batch_and_accumulation_fit(
    job: SimpleNamespace, text: str, replicas: int
) -> None:
    batch = 256 * replicas
    error = job.memory.explain(text, batch=batch, replicas=replicas, parameters=BASE)
    message = str(error)
    assert error.exit_code == 1
    assert message.startswith(f"not enough memory for --batch {batch} (")
    assert "\n" not in message
    fits = int(message.partition("--batch ")[2].partition("--batch ")[2].split()[0])
    used, room = job.memory.used_and_available(text)
    fixed = BASE * 16
    assert fixed + (used - fixed) * (fits / batch) <= room
    assert fixed + (used - fixed) * ((fits + 8 * replicas) / batch) > room, "the largest"
    assert fits % (8 * replicas) == 0
    parts = int(message.partition("--accumulation ")[2].split()[0])
    assert batch // replicas % parts == 0
    assert batch // replicas // parts <= fits // replicas


def test_half_the_batch_is_suggested_without_figures(job: SimpleNamespace) -> None:
    message = str(job.memory.explain(GPU, batch=64, replicas=2, parameters=BASE))
    assert "OOM when allocating tensor" in message, "a signature of tpuctl explain"
    assert "--batch 32 may fit, or --accumulation 2 with the same batch" in message
    message = str(job.memory.explain(GPU, batch=64, replicas=2, parameters=BASE, parts=4))
    assert "--batch 32 may fit, or --accumulation 8 with the same batch" in message
    message = str(job.memory.explain(GPU, batch=2, replicas=2, parameters=BASE))
    assert message.endswith("not even one sequence fits: use a smaller --size or --sequence-length")


def test_other_errors_are_not_explained(job: SimpleNamespace) -> None:
    text = "InvalidArgumentError: logits and labels must have the same first dimension"
    assert job.memory.explain(text, batch=8, replicas=1, parameters=BASE) is None
