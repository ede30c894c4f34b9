"""A machine with TensorFlow, whose gs:// is the local cloud's storage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests

from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.polling import until
from tpuctl.local_cloud import server_process

BUCKET = "lab-bucket"

PROGRAM = """
import os
import tensorflow as tf
print(tf.__version__)
root = "gs://BUCKET/some/folder"
with tf.io.gfile.GFile(root + "/text", "w") as file:
    file.write("line\\n" * 1000)
print(tf.io.gfile.GFile(root + "/text").read() == "line\\n" * 1000)
with tf.io.TFRecordWriter(root + "/records") as writer:
    for number in range(3):
        writer.write(bytes([number]) * 5)
print([bytes(record.numpy()) for record in tf.data.TFRecordDataset(root + "/records")][1])
print(sorted(tf.io.gfile.listdir(root)), tf.io.gfile.glob(root + "/t*"))
tf.io.gfile.rename(root + "/text", root + "/renamed")
print(tf.io.gfile.exists(root + "/text"), tf.io.gfile.exists(root + "/renamed"))
variable = tf.Variable(3.0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=variable), root + "/ckpt", 1)
manager.save()
variable.assign(4.0)
tf.train.Checkpoint(v=variable).restore(manager.latest_checkpoint)
print(float(variable))
from tensorflow.python.tpu.client import client  # which TPUClusterResolver asks
node = client.Client("bert")
print(node._project, node._zone, node.get_local_ip())
tf.io.gfile.rmtree(root)
print(tf.io.gfile.exists(root + "/renamed"))
"""


class Cloud:
    """The local cloud's REST API, as used by any client."""

    def __init__(self, cloud: server_process.LocalCloud) -> None:
        self._url = cloud.url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {cloud.token}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._session.request(method, f"{self._url}{path}", json=body, timeout=60)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json() if answer.content else {}

    def wait(self, version: str, operation: Any, seconds: int) -> Any:
        def ended() -> Any:
            state = self.call("GET", f"/{version}/{operation['name']}")
            return state if state.get("done") else None

        operation = until(ended, f"the end of {operation}", seconds)
        assert "error" not in operation, operation
        return operation.get("response", {})

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    home = tmp_path / "local"
    one = Cloud(server_process.start(home, pace="instant"))
    yield one
    one.close()
    server_process.stop(home)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
async def test_tensorflow_gs_paths_use_local_buckets(cloud: Cloud) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    text = key.export_public_key().decode().strip()
    for api in ("tpu.googleapis.com", "storage.googleapis.com", "compute.googleapis.com"):
        enabling = cloud.call("POST", f"/v1/projects/{PROJECT}/services/{api}:enable", {})
        cloud.wait("v1", enabling, 30)
    cloud.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
    node = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-tf-2.18.0-pjrt-v5p-and-below",
        "metadata": {"ssh-keys": f"anna:{text}"},
        "networkConfig": {"enableExternalIps": True},
    }
    creating = cloud.call("POST", f"/v2/{PARENT}/nodes?nodeId=bert", node)
    await asyncio.to_thread(cloud.wait, "v2", creating, 600)
    created = cloud.call("GET", f"/v2/{PARENT}/nodes/bert")
    port = int(created["metadata"].get("tpuctl-ssh-port", 22))
    address = created["networkEndpoints"][0]["ipAddress"]
    async with asyncssh.connect(
        address, port, username="anna", client_keys=[key], known_hosts=None, config=None
    ) as connection:
        done = await asyncio.wait_for(
            connection.run("python3 -", input=PROGRAM.replace("BUCKET", BUCKET)), 300
        )
    assert done.exit_status == 0, done.stderr
    assert str(done.stdout).splitlines() == [
        "2.18.0",
        "True",
        repr(b"\x01" * 5),
        "['records', 'text'] ['gs://lab-bucket/some/folder/text']",
        "False True",
        "3.0",
        f"{PROJECT} {ZONE} {address}",
        "False",
    ]
