"""The speed of TensorFlow's gs:// on the local cloud, compared with plain files and plain HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from tests.benchmarks.figures import Figure, cloud_in, local_cloud, sized
from tests.support.locations import PROJECT
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.local_cloud.shell_env import environment_for

MEGABYTES = sized(200, 1)
TIMES = sized(3, 1)
BUCKET = "bench-gs"

# Writes and reads records as a job does, alternating places, and prints the minimum seconds.
PROGRAM = """
import json, os, sys, time
import tensorflow as tf
megabytes, times, places = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
record = os.urandom(100_000)
best = {}
def note(name, began):
    best[name] = min(best.get(name, 1e9), time.perf_counter() - began)
for _ in range(times):
    for place in places:
        path = place + "/bench.tfrecord"
        began = time.perf_counter()
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(megabytes * 10):
                writer.write(record)
        note(place + " write", began)
        began = time.perf_counter()
        assert sum(1 for _ in tf.data.TFRecordDataset(path)) == megabytes * 10
        note(place + " read", began)
print(json.dumps(best))
"""


def gs_speed() -> Iterator[Figure]:
    """Records of 100 kB in one file of 200 MB; the best of three, all in one run."""
    python = asyncio.run(ImageStore().ensure("2.18.0", lambda _: None)) / "bin" / "python"
    with local_cloud("instant") as folder:
        cloud = cloud_in(folder)
        with requests.Session() as session:
            session.trust_env = False
            session.headers["Authorization"] = f"Bearer {cloud.token}"
            buckets = f"{cloud.url}/storage/v1/b?project={PROJECT}"
            session.post(buckets, json={"name": BUCKET}, timeout=30).raise_for_status()
            plain = plain_http(cloud, session)
        files, gs = folder / "files", f"gs://{BUCKET}"
        files.mkdir()
        took = by_tensorflow(python, cloud, [str(files), gs])
    for operation in ("write", "read"):
        seconds, on_disk = took[f"{gs} {operation}"], took[f"{files} {operation}"]
        yield Figure(
            f"gs:// {operation} by TensorFlow",
            f"{MEGABYTES / seconds:.0f} MB/s",
            f"{on_disk / seconds:.2f} × plain files, {plain[operation] / seconds:.2f} × plain HTTP",
        )


def by_tensorflow(
    python: Path, cloud: server_process.LocalCloud, places: list[str]
) -> dict[str, float]:
    around = dict(os.environ)
    for name, value in environment_for(cloud, around, PROJECT).items():
        around.pop(name, None)
        if value is not None:
            around[name] = value
    done = subprocess.run(
        [str(python), "-c", PROGRAM, str(MEGABYTES), str(TIMES), *places],
        env={**around, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def plain_http(cloud: server_process.LocalCloud, session: requests.Session) -> dict[str, float]:
    """The minimum seconds for the same bytes without TLS and without TensorFlow."""
    data = os.urandom(MEGABYTES * 1_000_000)
    upload = f"{cloud.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=plain"
    best = {"write": 1e9, "read": 1e9}
    for _ in range(TIMES):
        began = time.perf_counter()
        session.post(upload, data=data, timeout=300).raise_for_status()
        best["write"] = min(best["write"], time.perf_counter() - began)
        began = time.perf_counter()
        with session.get(f"{cloud.url}/{BUCKET}/plain", stream=True, timeout=300) as answer:
            size = sum(len(chunk) for chunk in answer.iter_content(1 << 20))
        best["read"] = min(best["read"], time.perf_counter() - began)
        assert size == len(data)
    return best
