"""Starts an exported job in a container of Kubernetes: downloads tpuctl's programs, then `pod.py`.

The text of this file is part of the manifest of `tpuctl export jobset`; the container runs it as
`python3 -S -I -c TEXT COMMAND...`: standard library only, Python 3.8 and later. The programs are an
archive in the bucket, named by its SHA-256.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import shutil
import sys
import tarfile
import time
import urllib.request

EXIT_RETRY = 75
DELAYS = (1, 2, 4, 8, 16, 32)  # seconds; a new pod's metadata server takes some to answer


def access_token() -> str:
    """An access token of the pod's service account."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    server = http.client.HTTPConnection(host, timeout=10)
    server.request("GET", path, headers={"Metadata-Flavor": "Google"})
    response = server.getresponse()
    if response.status != 200:
        raise OSError(f"metadata server: HTTP {response.status}")
    token: str = json.loads(response.read())["access_token"]
    return token


def download(bucket: str, name: str) -> bytes:
    path = name.replace("/", "%2F")
    url = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o/{path}?alt=media"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + access_token()})
    with urllib.request.urlopen(request, timeout=60) as response:
        content: bytes = response.read()
    if hashlib.sha256(content).hexdigest() not in name:
        raise OSError("checksum mismatch")
    return content


def download_with_retries(bucket: str, name: str) -> bytes:
    delays = iter(DELAYS)
    while True:
        try:
            return download(bucket, name)
        except (OSError, http.client.HTTPException, ValueError) as error:
            status = getattr(error, "code", None)
            delay = None if status == 404 else next(delays, None)
            if delay is None:
                print(f"tpuctl: cannot download gs://{bucket}/{name}: {error}", flush=True)
                sys.exit(1 if status in (401, 403, 404) else EXIT_RETRY)
            time.sleep(delay)


def main(command: list[str]) -> None:
    content = download_with_retries(os.environ["TPUCTL_BUCKET"], os.environ["TPUCTL_PROGRAMS"])
    folder = os.path.expanduser("~/.tpuctl/pod")
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            with open(os.path.join(folder, os.path.basename(member.name)), "wb") as target:
                shutil.copyfileobj(archive.extractfile(member) or io.BytesIO(), target)
    program = os.path.join(folder, "pod.py")
    os.execv(sys.executable, [sys.executable, "-S", "-I", program, folder, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
