"""TensorBoard summaries of the bundled job in a bucket: each step once, also after a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
CHECK_SUMMARIES = """
import os

import tensorflow as tf

from training.summaries import Summaries

folder = os.environ["TPUCTL_OUTPUT"] + "/tensorboard"
assert folder.startswith("gs://"), folder
for begin, end in ((0, 5), (3, 7), (7, 8)):
    summaries = Summaries(folder, begin)
    for step in range(begin + 1, end + 1):
        summaries.add(step, {"loss": begin})
    summaries.close()
found = {}
for path in tf.io.gfile.glob(folder + "/*"):
    for event in tf.compat.v1.train.summary_iterator(path):
        for value in event.summary.value:
            found.setdefault(event.step, []).append(int(value.simple_value))
print("found", sorted(found.items()))
"""


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_summaries_contain_each_step_once(
    make_stack: Callable[..., Tpuctl], events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack(runtime="auto")
    folder = tmp_path / "job"
    shutil.copytree(JOB, folder, ignore=shutil.ignore_patterns("requirements*", "__pycache__"))
    (folder / "writes.py").write_text(CHECK_SUMMARIES, "utf-8")
    await stack.up()
    code = await stack.run(folder / "writes.py")
    log = b"".join(event.data for event in events if isinstance(event, LogChunk)).decode()
    assert code == 0, log
    steps = [
        *((step, [0]) for step in (1, 2, 3)),
        *((step, [3]) for step in (4, 5, 6, 7)),
        (8, [7]),
    ]
    assert f"found {steps}" in log, log
    assert (await stack.down(delete_bucket=True)).leaks == ()
