"""Checks of the device choice and of remote input pipelines; run by a Python with TensorFlow.

Two TensorFlow servers simulate the hosts of a TPU node, as on the local cloud.
"""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import tensorflow as tf
from settings import options_of
from tensorflow.python.distribute.input_lib import InputWorkers
from tensorflow.python.distribute.input_util import get_distributed_dataset

import devices
from files import JobError
from input_pipeline import dataset, held_out, with_sharding
from vocabulary import train_vocabulary

FOLDER = Path(sys.argv[1])
ROOT = Path(__file__).resolve().parents[3]
SERVER = ROOT / "tpuctl" / "emulator" / "machines" / "servers" / "node_server.py"
BATCH = 8


def refused(device: str, **environment: str) -> str:
    """Return the one-line error of a device choice."""
    os.environ.update(environment)
    try:
        choice = devices.choose(device)
    except JobError as error:
        assert len(str(error).splitlines()) == 1, error
        return str(error)
    finally:
        for name in environment:
            del os.environ[name]
    raise AssertionError(f"{device} {environment} gave {choice}")


@contextlib.contextmanager
def hosts(count: int):
    """Start a cluster of `count` servers; yield their addresses."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in free]
    with contextlib.ExitStack() as stack:
        servers = []
        for task in range(count):
            script = [*shlex.split(os.environ["FORKED_PYTHON"]), SERVER, str(task), *addresses]
            server = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
            stack.enter_context(server)
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            assert any(line.startswith("serving ") for line in server.stdout), "no server"
        yield addresses


assert "no TPU chips" in refused("tpu")
assert "found no GPU" in refused("gpu")
unreachable = refused("auto", TPU_NAME="grpc://127.0.0.1:1")
assert "'grpc://127.0.0.1:1'" in unreachable, unreachable
assert "cannot connect to 127.0.0.1:1" in unreachable, unreachable
# A name is resolved through the API, with a package that is not installed here.
error = refused("auto", TPU_NAME="my-tpu", TPU_ZONE="us-central1-b", TPU_PROJECT="mine")
assert "'my-tpu'" in error and "cloud-tpu-client" in error, error
# Not the TPU build of TensorFlow.
assert "found no TPU devices" in refused("auto", ISTPUVM="1")

numbers = FOLDER / "numbers"
with tf.io.TFRecordWriter(str(numbers)) as writer:
    for number in range(10 * BATCH):
        writer.write(f"{number:03}".encode())


def examples(map_one=lambda text: tf.strings.to_number(text, tf.int32)):
    records = tf.data.TFRecordDataset(str(numbers)).map(map_one)
    return with_sharding(records.batch(BATCH, drop_remainder=True).repeat())


def operations(pipeline):
    """The types of operations in a pipeline and its functions."""

    @tf.function
    def first():
        return next(iter(pipeline()))

    graph = first.get_concrete_function().graph.as_graph_def()
    functions = [node.op for function in graph.library.function for node in function.node_def]
    return {node.op for node in graph.node} | set(functions)


# A node's host does not run our Python code. TensorFlow's server forwards such calls to the client,
# so the simulated node would not fail: check the operations instead.
PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}
assert PYTHON & operations(
    lambda: examples(
        lambda text: tf.py_function(lambda value: int(value.numpy()), [text], tf.int32)
    )
)
sample = Path(devices.__file__).parent / "sample"
lines = [path.read_text("utf-8") for path in sorted(sample.iterdir())]
(FOLDER / "tokenizer").mkdir()
train_vocabulary(lambda: lines, 500).save(str(FOLDER / "tokenizer" / "tokenizer.json"))
(FOLDER / "records").mkdir()
numbers.rename(FOLDER / "records" / "numbers")
numbers = FOLDER / "records" / "numbers"
listed = {"numbers": numbers.stat().st_size}
manifest = {
    "sequence_length": 32,
    "vocabulary_size": 500,
    "files": listed,
    "held_out_files": listed,
    "counts": {"sequences": 99, "held_out_sequences": 99},
}
options = options_of(batch=BATCH)
for read in (lambda *of: dataset(*of, 7), held_out):
    kinds = operations(lambda read=read: read(str(FOLDER / "records"), manifest, options))
    assert "TFRecordDataset" in " ".join(kinds) and not PYTHON & kinds, kinds

with hosts(2) as addresses:
    endpoints = ",".join(f"grpc://{address}" for address in addresses)
    # gRPC uses a proxy for any address that is not excluded.
    os.environ |= {"no_grpc_proxy": "127.0.0.1", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": endpoints}
    os.environ["TPUCTL_CLOUD"] = "local"
    choice = devices.choose()
    assert (choice.kind, choice.replicas, choice.is_remote) == ("cpu", 1, True), choice
    assert "simulating" in choice.description

    # Weights and computation are on the node's first host, which also reads the data.
    with choice.strategy.scope():
        total = tf.Variable(0, dtype=tf.int32)
    assert total.device.startswith("/job:worker/replica:0/task:0"), total.device

    @tf.function
    def add(iterator, steps):
        for _ in tf.range(steps):
            choice.strategy.run(
                lambda share: total.assign_add(tf.reduce_sum(share)), (next(iterator),)
            )

    iterator = iter(choice.strategy.experimental_distribute_dataset(examples()))
    add(iterator, tf.constant(3))
    assert int(total) == sum(range(3 * BATCH)), int(total)

    # On a slice every host has its own pipeline; together they read each sequence once. No
    # multi-host strategy runs here, so the pipelines are created as in TPUStrategy.
    workers = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    shares = get_distributed_dataset(
        examples(),
        InputWorkers([(worker, [worker]) for worker in workers]),
        choice.strategy,
        num_replicas_in_sync=2,
    )
    shares = iter(shares)
    for step in range(4):
        per_host = [share.numpy().tolist() for share in next(shares).values]
        assert [len(share) for share in per_host] == [BATCH // 2] * 2, per_host
        expected = [step * BATCH + n for n in range(BATCH)]
        assert sorted([*per_host[0], *per_host[1]]) == expected, (per_host, expected)

print("checked", flush=True)
os._exit(0)  # TensorFlow would wait for the stopped servers
