"""Fetches a job's secrets from Secret Manager, with the machine's own account.

Like `supervisor.py`, which forks it, this file is sent to workers as it is and also runs as
`python3 -S -I secret_fetch.py FOLDER`: standard library only, Python 3.8 and later.

    secrets.json: uploaded values, and references -> secret_values.json: values by name

Both are readable by the user alone, and removed when the attempt has ended. No value is ever
printed, nor put into a command line.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.storage import Account, HttpError
else:
    from folder import Folder
    from storage import Account, HttpError

SECRETS = "https://secretmanager.googleapis.com/v1/"
DELAYS = (1, 2, 4, 8)  # seconds between retries of transient errors
PAUSE, MAX_PAUSE = 1.0, 15.0  # between retries while the account may not have access yet


class Failure(Exception):
    """A secret is unavailable."""


class Transient(Exception):
    """A retry may succeed."""


class Refused(Exception):
    """The account may not read it, or not yet."""


def access(account: Account, reference: str) -> bytes:
    """The payload of a version, verified by its checksum."""
    try:
        with account.request("GET", SECRETS + reference + ":access") as answer:
            payload = json.load(answer)["payload"]
    except HttpError as error:
        message, reasons = error_details(error)
        if error.code == 403 and "SERVICE_DISABLED" not in reasons:
            raise Refused(message) from None
        if error.code == 429 or error.code >= 500:
            raise Transient(message) from None
        raise Failure(message) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Transient(f"Secret Manager is unreachable: {error}") from None
    data = base64.b64decode(payload.get("data", ""))
    if int(payload.get("dataCrc32c", crc32c(data))) != crc32c(data):
        raise Transient("checksum mismatch")
    return data


def error_details(error: HttpError) -> tuple[str, list[Any]]:
    """Google's error message, and its machine-readable reasons."""
    try:
        error_body = json.loads(error.content)["error"]
        reasons = [detail.get("reason") for detail in error_body.get("details", ())]
        return " ".join(error_body["message"].split()), reasons
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {error.code} {error.reason}", []


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def access_with_retries(
    folder: Folder, account: Account, name: str, reference: str, until: float
) -> bytes:
    """`access` with retries. Grants take minutes to propagate: until `until`, a denial is
    retried."""
    delays, pause = iter(DELAYS), PAUSE
    while True:
        try:
            return access(account, reference)
        except Transient as error:
            delay = next(delays, None)
            if delay is None:
                raise Failure(str(error)) from None
            time.sleep(delay)
        except Refused as refused:
            if time.monotonic() + pause > until:
                raise Failure(
                    f"the machine's account may not read it: {refused} `tpuctl up` grants access "
                    "to the secrets in the stack file"
                ) from None
            if pause == PAUSE:
                folder.log(
                    f"secret {name}: waiting for the machine's service account to get access"
                )
            time.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)


def decode(name: str, data: bytes, folder: Folder) -> str:
    """The value as an environment variable."""
    if b"\0" in data:
        raise Failure("it contains a zero byte, which environment variables cannot hold")
    if data.endswith(b"\n"):
        folder.log(f"secret {name} ends with a newline, which is part of its value")
    return data.decode("utf-8", "surrogateescape")


def main(arguments: list[str]) -> int:
    folder = Folder(arguments[0])
    secrets = folder.read("secrets.json")
    if secrets is None:
        print("secrets were already deleted from this machine: the attempt has ended")
        return 1
    values: dict[str, str] = dict(secrets["values"])
    account = Account()
    until = time.monotonic() + float(secrets.get("retry_seconds", 0))
    for name, reference in sorted(secrets["references"].items()):
        try:
            data = access_with_retries(folder, account, name, reference, until)
            values[name] = decode(name, data, folder)
        except Failure as failure:
            print(f"{name} ({reference}): {failure}")
            return 1
    folder.write("secret_values.json", values)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
