"""Prints the machine's number among the workers of its slice; nothing if the metadata has none.

This file is sent to the standard input of `python3 -S -I -`: standard library only, Python 3.8 and
later. libtpu numbers the workers by the same attribute. On TPU VMs it is `agent-worker-number`
(jax/_src/clusters/cloud_tpu_cluster.py); a slice of Compute Engine was seen with `worker-id`.
"""

from __future__ import annotations

import http.client
import os


def attribute(name: str) -> str:
    """An attribute of this machine, "" if it has none."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    server = http.client.HTTPConnection(host, timeout=10)
    try:
        path = f"/computeMetadata/v1/instance/attributes/{name}"
        server.request("GET", path, headers={"Metadata-Flavor": "Google"})
        response = server.getresponse()
        return response.read().decode() if response.status == 200 else ""
    finally:
        server.close()


def worker_number() -> str:
    return attribute("agent-worker-number") or attribute("worker-id")


if __name__ == "__main__":
    print(worker_number())
