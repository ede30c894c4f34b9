"""The bundled job: BERT trained on a TPU VM, from upload to cleanup."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack_jobs import displayed_log
from tests.support.subprocesses import run_captured
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
STEPS, STEPS_PER_CALL = 20, 10
MODEL = ("config.json", "model.safetensors", "tokenizer.json", "README.md", "training.json")


@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_bert_trains_from_template(
    make_stack: Callable[..., Tpuctl], events: list[Event], bert_job: Path
) -> None:
    stack = make_stack(runtime="auto")
    await stack.up()
    (bert_job / "output.txt").write_text("left by an earlier run\n", "utf-8")
    record = await stack.submit(
        bert_job / "pretrain.py",
        f"--steps {STEPS} --steps-per-call {STEPS_PER_CALL} --batch 8 "
        "--vocabulary-size 400 --sequence-length 32 --learning-rate 3e-3 --replicas 2".split(),
    )
    assert await stack.follow(record) == 0

    log = displayed_log(events)
    curves = {curve.name: curve for curve in (await stack.report(record)).curves}
    losses = curves["loss"].all_points
    assert losses[-1][0] == STEPS
    assert losses[-1][1] < losses[0][1]
    assert all(speed > 0 for _, speed in curves["tokens_per_second"].all_points)
    assert "TensorFlow 2.18.0" in log, "the image's TensorFlow was not replaced"
    assert "2 replicas" in log

    storage = stack.cloud.client("storage")
    sizes = {blob.name: blob.size for blob in storage.list_blobs(stack.stack.bucket)}
    prefix = f"tpuctl/jobs/{record.id}"
    output = f"{prefix}/output"
    assert {f"{output}/checkpoints/model-{STEPS}.{end}" for end in ("index", "json")} <= set(sizes)
    assert {f"{output}/model/{name}" for name in MODEL} <= set(sizes)
    assert sizes[f"{output}/metrics.jsonl"] > 0
    assert {f"{output}/tokenizer/tokenizer.json", f"{output}/model/vocab.txt"} <= set(sizes)
    assert any(name.startswith(f"{output}/records/") for name in sizes)
    assert any(name.startswith(f"{output}/tensorboard/events.out.tfevents.") for name in sizes)
    bucket = storage.bucket(stack.stack.bucket)
    copied = bucket.blob(f"{prefix}/attempts/1/worker-0.log").download_as_bytes()
    assert copied.decode() == log
    record_in_bucket = json.loads(
        bucket.blob(f"{prefix}/attempts/1/worker-0.json").download_as_bytes()
    )
    assert (
        record_in_bucket["state"],
        record_in_bucket["exit_code"],
        record_in_bucket["log_bytes"],
    ) == ("succeeded", 0, len(copied))

    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_demo() -> None:
    """With a short training on one device. The tutorial's, whose commands are tested too, is longer
    and on two."""
    size = (
        f"--steps {STEPS} --steps-per-call {STEPS_PER_CALL} --batch 16 --vocabulary-size 400 "
        "--sequence-length 32 --replicas 1"
    )
    done = run_captured([sys.executable, str(ROOT / "tests" / "demo.py"), *size.split()])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Checkpoint in the bucket" in done.stdout
    assert "No billable resources are left" in done.stdout
