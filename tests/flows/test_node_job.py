"""A job on the controller of a TPU node: it trains on the node, which can only read gs://."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.errors import Refused
from tpuctl.model.events import Event

# As a user would write it, except for the strategy: `initialize_tpu_system` does not support the
# CPUs that replace the TPU's cores here.
CONNECT = """
import json, os, sys
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"
"""
TRAIN = """
strategy = tf.distribute.OneDeviceStrategy(DEVICE)
output = os.environ["TPUCTL_OUTPUT"]
with tf.io.TFRecordWriter(output + "/data/numbers") as writer:
    for number in range(32):
        writer.write(str(float(number)).encode())

def number_of(text):
    x = tf.strings.to_number(text) / 32.0
    return [x], [3.0 * x]

with tf.device(DEVICE):  # read by the node itself, from the bucket
    data = tf.data.TFRecordDataset(output + "/data/numbers").map(number_of).batch(8).repeat(10)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
losses = model.fit(data, epochs=2, verbose=0).history["loss"]
devices = sorted({weight.device for weight in model.weights})
with tf.io.gfile.GFile(output + "/weights.json", "w") as file:
    json.dump([weight.tolist() for weight in model.get_weights()], file)
print(json.dumps({
    "losses": losses,
    "devices": devices,
    "master": resolver.master(),
    "name": os.environ["TPU_NAME"],
    "workers": os.environ["TPUCTL_WORKERS"],
}))
"""
LOCAL_FILE = r"""
with open("numbers.txt", "w") as file:
    file.write("1\n2\n")
path = os.path.abspath("numbers.txt")
print(len(open(path).readlines()), "lines on the controller", flush=True)
with tf.device(DEVICE):
    data = tf.data.TextLineDataset(path)
    list(data)
"""


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_job_trains_on_tpu_node_and_local_paths_fail(
    make_stack: Callable[..., Tpuctl], events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack(runtime="auto, kind: node")
    await stack.up()
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text(CONNECT + TRAIN + LOCAL_FILE, "utf-8")
    with pytest.raises(Refused):  # the check rejects the local path first
        await stack.run(script)
    record = await stack.start(stack.submission(script, check=False))
    assert await stack.follow(record) == 1, "as on Google: the node cannot read the local file"

    log = displayed_log(events)
    result = json.loads(next(line for line in log.splitlines() if line.startswith("{")))
    assert result["losses"][1] < result["losses"][0]
    assert {device.partition("/replica")[0] for device in result["devices"]} == {"/job:worker"}
    node = await stack.node()
    assert result["master"] == f"grpc://{node.endpoints[0]}"
    assert (result["name"], result["workers"]) == (stack.stack.names.node, "1")
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    weights = bucket.blob(f"tpuctl/jobs/{record.id}/output/weights.json").download_as_bytes()
    assert json.loads(weights)[0][0][0] != 0
    assert "2 lines on the controller" in log
    assert "numbers.txt; No such file or directory" in log

    assert (await stack.down(delete_bucket=True)).leaks == ()
