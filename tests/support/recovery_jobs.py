"""Jobs that resume after their last attempt, and faults to interrupt them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, LogChunk, Note

# Counts to the given number, one line each, and saves the count in the job's output folder,
# where the next attempt resumes. Standard library only: the machine has nothing else.
COUNTING = """
import json, os, sys, time, urllib.error, urllib.parse, urllib.request

here = urllib.request.build_opener(urllib.request.ProxyHandler({}))
cloud = urllib.request.build_opener()
host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
asked = urllib.request.Request(
    f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token",
    headers={"Metadata-Flavor": "Google"},
)
token = json.load(here.open(asked))["access_token"]
bucket, _, folder = os.environ["TPUCTL_OUTPUT"].removeprefix("gs://").partition("/")
name = urllib.parse.quote(f"{folder}/{os.environ['TPUCTL_WORKER']}", safe="")
root = "https://storage.googleapis.com"


def ask(url, data=None):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
    return cloud.open(urllib.request.Request(url, data=data, headers=headers)).read()


try:
    done = int(ask(f"{root}/storage/v1/b/{bucket}/o/{name}?alt=media"))
except urllib.error.HTTPError as error:
    assert error.code == 404
    done = 0
print("attempt", os.environ["TPUCTL_ATTEMPT"], "from", done, flush=True)
for number in range(done, int(sys.argv[1])):
    print("step", number, flush=True)
    ask(
        f"{root}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}",
        str(number + 1).encode(),
    )
    time.sleep(float(sys.argv[2]))
print("counted", flush=True)
"""


def script(stack: Tpuctl, text: str) -> Path:
    path = stack.stack_file.parent / "job.py"
    path.write_text(text)
    return path


async def inject_fault(cloud: LocalCloud, kind: str, **fields: Any) -> str:
    """Inject a fault; returns its id."""
    fault = await asyncio.to_thread(remote_control.add_fault, cloud, kind, **fields)
    return str(fault["id"])


def log_of(events: Sequence[Event], attempt: int, worker: int = 0) -> str:
    """The displayed log of an attempt; each chunk starts where the previous one ended."""
    log = b""
    for event in events:
        if isinstance(event, LogChunk) and (event.attempt, event.worker) == (attempt, worker):
            assert event.offset == len(log)
            log += event.data
    return log.decode()


def notes(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Note))
