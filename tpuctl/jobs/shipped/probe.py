"""Waits until the machine's account can use the bucket: grants take minutes to propagate.

This file is sent to a worker as it is and runs there as `python3 -S -I probe.py BUCKET SECONDS`:
standard library only, Python 3.8 and later. Like a job, it uses the metadata server's token: it
reads the bucket, then writes, reads and deletes a small object. Each error is a line of output;
the exit code is 0 once everything works, 1 after SECONDS, and 2 if a retry cannot help.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

__all__ = ["main"]

STORAGE = "https://storage.googleapis.com"
FOLDER = "tpuctl/bundles"  # leftovers of a killed probe expire with the bundles
RETRIED_CODES = (401, 403, 404, 408, 429)  # 404: the bucket itself may be too new
DELAYS = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0)


class Refused(Exception):
    """A request failed; `is_final` means that a retry cannot help."""

    def __init__(self, text: str, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Probe:
    """Makes rounds of requests, each with a new token."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.name = f"{FOLDER}/{os.getpid()}-{time.time_ns()}"
        self.opener = urllib.request.build_opener()  # honors https_proxy and SSL_CERT_FILE
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def round(self) -> None:
        """Raises Refused at the first request that fails."""
        token = self.token()
        bucket_path = f"/storage/v1/b/{self.bucket}"
        object_path = f"{bucket_path}/o/{urllib.parse.quote(self.name, safe='')}"
        query = urllib.parse.urlencode({"uploadType": "media", "name": self.name})
        self.call(token, "reading the bucket", "GET", bucket_path)
        self.call(token, "writing an object", "POST", f"/upload{bucket_path}/o?{query}", b"tpuctl")
        read = self.call(token, "reading an object", "GET", object_path + "?alt=media")
        if read != b"tpuctl":
            raise Refused(f"reading an object: unexpected content: {read!r}")
        self.call(token, "deleting an object", "DELETE", object_path)

    def token(self) -> str:
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        path = "computeMetadata/v1/instance/service-accounts/default/token"
        request = urllib.request.Request(f"http://{host}/{path}")
        request.add_header("Metadata-Flavor", "Google")
        try:
            with self.direct.open(request, timeout=10) as response:
                return str(json.load(response)["access_token"])
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"the machine has no service account: HTTP {error.code}") from error
        except (OSError, ValueError, KeyError) as error:
            raise Refused(f"the metadata server: {error}") from error

    def call(
        self, token: str, action: str, method: str, path: str, body: bytes | None = None
    ) -> bytes:
        request = urllib.request.Request(STORAGE + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Content-Type", "application/octet-stream")
        try:
            with self.opener.open(request, timeout=30) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            with error:
                text = message(error.read())
            is_final = error.code < 500 and error.code not in RETRIED_CODES
            raise Refused(f"{action}: HTTP {error.code}: {text}", is_final) from error
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{action}: {error}") from error


def message(body: bytes) -> str:
    """The message of a Cloud Storage error, in one line."""
    try:
        text = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(str(text).split())[:500]


def main(arguments: list[str]) -> int:
    probe = Probe(arguments[0])
    deadline = time.monotonic() + float(arguments[1])
    delays = iter(DELAYS)
    while True:
        try:
            probe.round()
        except Refused as refused:
            print(refused, flush=True)
            left = deadline - time.monotonic()
            if refused.is_final or left <= 0:
                return 2 if refused.is_final else 1
            time.sleep(min(left, next(delays, DELAYS[-1])))
        else:
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
