"""Checks of the choice of devices, and of a TPU node's rules; run by a Python with TensorFlow.

Two TensorFlow servers stand in for the hosts of a TPU node, as on the local cloud.
"""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.python.distribute.input_lib import InputWorkers
from tensorflow.python.distribute.input_util import get_distributed_dataset

from errors import JobError
from training import strategy
from training.reading import dataset, held_out, sharing

FOLDER = Path(sys.argv[1])
SERVER = Path(__file__).resolve().parents[3] / "tpuctl" / "emulator" / "machines" / "node_server.py"
BATCH = 8


def refused(device: str, **environment: str) -> str:
    """The error of a choice, which is one line."""
    os.environ.update(environment)
    try:
        choice = strategy.choose(device)
    except JobError as error:
        assert len(str(error).splitlines()) == 1, error
        return str(error)
    finally:
        for name in environment:
            del os.environ[name]
    raise AssertionError(f"{device} {environment} gave {choice}")


@contextlib.contextmanager
def hosts(count: int):
    """Addresses of so many servers, which form one cluster."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in free]
    with contextlib.ExitStack() as stack:
        servers = []
        for task in range(count):
            command = [sys.executable, SERVER, str(task), *addresses]
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            assert any(line.startswith(b"serving ") for line in server.stdout), "no server"
        yield addresses


assert "no TPU chips" in refused("tpu")
assert "sees no GPU" in refused("gpu")
silent = refused("auto", TPU_NAME="grpc://127.0.0.1:1")
assert "'grpc://127.0.0.1:1'" in silent and "no answer from 127.0.0.1:1" in silent, silent
# A name is looked up at the API, by a package that is not installed here.
named = refused("auto", TPU_NAME="my-tpu", TPU_ZONE="us-central1-b", TPU_PROJECT="mine")
assert "'my-tpu'" in named and "cloud-tpu-client" in named, named
# Another kind of TensorFlow than a TPU VM needs.
assert "finds no TPU devices" in refused("auto", ISTPUVM="1")

numbers = FOLDER / "numbers"
with tf.io.TFRecordWriter(str(numbers)) as writer:
    for number in range(10 * BATCH):
        writer.write(f"{number:03}".encode())


def examples(map_one=lambda text: tf.strings.to_number(text, tf.int32)):
    records = tf.data.TFRecordDataset(str(numbers)).map(map_one)
    return records.batch(BATCH, drop_remainder=True).repeat().with_options(sharing())


def operations(pipeline):
    """The kinds of operations in a pipeline, those of its functions included."""

    @tf.function
    def first():
        return next(iter(pipeline()))

    graph = first.get_concrete_function().graph.as_graph_def()
    functions = [node.op for one in graph.library.function for node in one.node_def]
    return {node.op for node in graph.node} | set(functions)


# A node's host has no Python of ours. TensorFlow's own server hands such calls back to the program
# that drives it, so the stand-in would not show them: the operations are looked at.
PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}
assert PYTHON & operations(
    lambda: examples(lambda text: tf.py_function(lambda one: int(one.numpy()), [text], tf.int32))
)
item = {"name": "numbers", "sequences": 99, "bytes": numbers.stat().st_size}
special = {"padding": 0, "start": 2, "separator": 3, "mask": 4}
sizes = {"sequence_length": 32, "predictions": 5, "vocabulary_size": 500}
manifest = {**sizes, "files": [item], "held_out": [item], "special_tokens": special}
for masking in ("static", "dynamic"):
    here = {**manifest, "masking": masking}
    found = operations(lambda here=here: dataset(str(FOLDER), here, BATCH, 1, 7))
    assert "TFRecordDataset" in " ".join(found) and not PYTHON & found, found
assert not PYTHON & operations(lambda: held_out(str(FOLDER), here, BATCH))

with hosts(2) as addresses:
    endpoints = ",".join(f"grpc://{one}" for one in addresses)
    # gRPC takes a proxy to any address that is not excepted.
    os.environ |= {"no_grpc_proxy": "127.0.0.1", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": endpoints}
    os.environ["TPUCTL_CLOUD"] = "local"
    choice = strategy.choose()
    assert (choice.kind, choice.replicas, choice.is_remote) == ("cpu", 1, True), choice
    assert "standing in" in choice.description

    # Weights and work are on the node's first host, which reads the data too.
    with choice.strategy.scope():
        total = tf.Variable(0, dtype=tf.int32)
    assert total.device.startswith("/job:worker/replica:0/task:0"), total.device

    @tf.function
    def add(iterator, steps):
        for _ in tf.range(steps):
            choice.run(lambda share: total.assign_add(tf.reduce_sum(share)), (next(iterator),))

    iterator = iter(choice.strategy.experimental_distribute_dataset(examples()))
    add(iterator, tf.constant(3))
    assert int(total) == sum(range(3 * BATCH)), int(total)

    # On a slice every host has a pipeline of its own; together they see each sequence once. No
    # strategy of several hosts runs here, so they are fed as TPUStrategy feeds them.
    workers = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    shares = get_distributed_dataset(
        examples(),
        InputWorkers([(worker, [worker]) for worker in workers]),
        choice.strategy,
        num_replicas_in_sync=2,
    )
    shares = iter(shares)
    for step in range(4):
        found = [one.numpy().tolist() for one in next(shares).values]
        assert [len(one) for one in found] == [BATCH // 2] * 2, found
        expected = [step * BATCH + n for n in range(BATCH)]
        assert sorted([*found[0], *found[1]]) == expected, (found, expected)

print("checked", flush=True)
os._exit(0)  # the servers are gone, and TensorFlow would wait for them
