"""Waits until the machine's account can use the bucket: grants take minutes to propagate.

This file is sent to a worker with `storage.py`, as it is, and runs there as
`python3 -S -I probe.py BUCKET SECONDS`: standard library only, Python 3.8 and later. Like a job, it
uses the metadata server's token: it reads the bucket, then writes, reads and deletes a small
object. Each error is a line of output; the exit code is 0 once everything works, 1 after SECONDS,
and 2 if a retry cannot help.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time

# The other shipped files are in this folder: search it after the standard library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from storage import Bucket, HttpError

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

    def round(self) -> None:
        """Raises Refused at the first request that fails."""
        bucket = Bucket(self.bucket)
        authorize(bucket)
        path = bucket.object(self.name)

        def read() -> bytes:
            with bucket.open("GET", path, alt="media") as response:
                return bytes(response.read())

        attempt("reading the bucket", lambda: bucket.call("GET", f"/storage/v1/b/{self.bucket}"))
        attempt("writing an object", lambda: bucket.put(self.name, b"tpuctl"))
        content = attempt("reading an object", read)
        if content != b"tpuctl":
            raise Refused(f"reading an object: unexpected content: {content!r}")
        attempt("deleting an object", lambda: bucket.call("DELETE", path))


def authorize(bucket: Bucket) -> None:
    """Get a token from the metadata server. Raises Refused."""
    try:
        bucket.authorization()
    except HttpError as error:
        raise Refused(f"the machine has no service account: HTTP {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise Refused(f"the metadata server: {error}") from error


def attempt(action: str, request: Callable[[], Any]) -> Any:
    """The result of a request. Raises Refused."""
    try:
        return request()
    except HttpError as error:
        is_final = error.code < 500 and error.code not in RETRIED_CODES
        text = f"{action}: HTTP {error.code}: {message(error.content)}"
        raise Refused(text, is_final) from error
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
