"""Fetches a job's secrets from Secret Manager, with the machine's own account.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I secret_fetch.py FOLDER`: standard library only, Python 3.8 and later.

    secrets.json: values that came along, and references -> opened.json: values by name

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
import urllib.error
from typing import TYPE_CHECKING, Any

# What is sent along lies beside this file, and after the standard library: the job's own code is
# in that folder too.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.folder import Folder
    from tpuctl.jobs.shipped.storage import Account
else:
    from folder import Folder
    from storage import Account

__all__ = ["main"]

SECRETS = "https://secretmanager.googleapis.com/v1/"
DELAYS = (1, 2, 4, 8)  # seconds between tries where the service is in trouble
PAUSE, LONGEST_PAUSE = 1.0, 15.0  # between tries where the account may not be let in yet


class Failure(Exception):
    """A secret cannot be had."""


class Trouble(Exception):
    """It may be had if asked for again."""


class Refused(Exception):
    """The account may not read it, or not yet."""


def access(account: Account, reference: str) -> bytes:
    """The payload of a version, which arrived as it was put in."""
    try:
        with account.request("GET", SECRETS + reference + ":access") as answer:
            payload = json.load(answer)["payload"]
    except urllib.error.HTTPError as error:
        told, reasons = refusal(error)
        if error.code == 403 and "SERVICE_DISABLED" not in reasons:
            raise Refused(told) from None
        if error.code == 429 or error.code >= 500:
            raise Trouble(told) from None
        raise Failure(told) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Trouble(f"Secret Manager cannot be reached: {error}") from None
    data = base64.b64decode(payload.get("data", ""))
    if int(payload.get("dataCrc32c", crc32c(data))) != crc32c(data):
        raise Trouble("it arrived damaged")
    return data


def refusal(error: urllib.error.HTTPError) -> tuple[str, list[Any]]:
    """What Google says, and the reasons that it gives for programs."""
    try:
        told = json.load(error)["error"]
        reasons = [one.get("reason") for one in told.get("details", ())]
        return " ".join(told["message"].split()), reasons
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {error.code} {error.reason}", []


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def patiently(folder: Folder, account: Account, name: str, reference: str, until: float) -> bytes:
    """`access`, again where that may help. Grants take minutes to be felt: until then a refusal
    says to wait."""
    delays, pause = iter(DELAYS), PAUSE
    while True:
        try:
            return access(account, reference)
        except Trouble as trouble:
            delay = next(delays, None)
            if delay is None:
                raise Failure(str(trouble)) from None
            time.sleep(delay)
        except Refused as refused:
            if time.monotonic() + pause > until:
                raise Failure(
                    f"the machine's account may not read it: {refused} `tpuctl up` lets it in "
                    "where the stack file names the secret"
                ) from None
            if pause == PAUSE:
                folder.say(f"secret {name}: the machine's account is not let in yet: waiting")
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


def text_of(name: str, data: bytes, folder: Folder) -> str:
    """As a variable of the environment has it."""
    if b"\0" in data:
        raise Failure("it has a zero byte, which no variable can hold")
    if data.endswith(b"\n"):
        folder.say(f"secret {name} ends with a line break, which is part of it")
    return data.decode("utf-8", "surrogateescape")


def main(arguments: list[str]) -> int:
    folder = Folder(arguments[0])
    wanted = folder.read("secrets.json")
    if wanted is None:
        print("they are not on this machine any more: the attempt had ended")
        return 1
    opened: dict[str, str] = dict(wanted["values"])
    account = Account()
    until = time.monotonic() + float(wanted.get("patience", 0))
    for name, reference in sorted(wanted["references"].items()):
        try:
            data = patiently(folder, account, name, reference, until)
            opened[name] = text_of(name, data, folder)
        except Failure as failure:
            print(f"{name} ({reference}): {failure}")
            return 1
    folder.write("opened.json", opened)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
