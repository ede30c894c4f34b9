"""Retry tests: planned failures of the calls that name a test in a header.

The interface of googleapis/storage-testbench, which the conformance tests of Google's storage
clients use: `POST /retry_test` with instructions by method returns an id, which the calls have as
`x-retry-test-id`; `GET /retry_test/ID` tells what was not used, `DELETE` ends it. Each instruction
is a fault that applies once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.faults.fault import Fault, Faults
from tpuctl.emulator.state.errors import invalid, missing
from tpuctl.emulator.state.text import parse_json
from tpuctl.emulator.wire.http_request import Request

ROOT = "/retry_test"
_PATH = re.compile(rf"{ROOT}/([\w-]+)")
_STATUS = re.compile(r"return-(\d{3})(?:-after-(\d+)K)?")
_BROKEN = re.compile(r"return-broken-stream(?:-after-(\d+)K)?")
# Methods that the tests call otherwise than the API's description does, by a prefix.
_METHODS = {
    "storage.bucket_acl.": "storage.bucketAccessControls.",
    "storage.default_object_acl.": "storage.defaultObjectAccessControls.",
    "storage.hmacKey.": "storage.projects.hmacKeys.",
    "storage.object_acl.": "storage.objectAccessControls.",
    "storage.resumable.upload": "storage.objects.insert",
    "storage.serviceaccount.": "storage.projects.serviceAccount.",
}


class RetryTests:
    """Answers `/retry_test`. The tests are their faults, and are lost when those are removed."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def answer(self, request: Request) -> dict[str, Any]:
        if request.path == ROOT and request.verb == "POST":
            return self._show(self._add(await request.read()))
        match = _PATH.fullmatch(request.path)
        if match is None or request.verb not in ("GET", "DELETE"):
            raise missing(f"{request.verb} {request.path} not found.")
        answer = self._show(match[1])
        if request.verb == "DELETE":
            for fault in self._of(match[1]):
                self._faults.remove(fault.id)
        return answer

    def _add(self, body: bytes) -> str:
        try:
            instructions = parse_json(body)["instructions"]
            planned = [
                (str(method), str(instruction))
                for method, texts in instructions.items()
                for instruction in texts
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise invalid("A retry test has instructions, by method.") from error
        specs = [_fault(method, instruction) for method, instruction in planned]
        test = secrets.token_hex(16)
        for (method, instruction), spec in zip(planned, specs, strict=True):
            fault = self._faults.add(spec)
            self._faults.update(fault, retry_test=test, instruction=[method, instruction])
        return test

    def _show(self, test: str) -> dict[str, Any]:
        faults = self._of(test)
        if not faults:
            raise missing(f"Retry test {test} not found.")
        rest: dict[str, list[str]] = {}
        for fault in faults:
            if not fault.is_exhausted():
                method, instruction = fault.fields["instruction"]
                rest.setdefault(method, []).append(instruction)
        return {"id": test, "instructions": rest, "completed": not rest, "transport": "HTTP"}

    def _of(self, test: str) -> list[Fault]:
        return [fault for fault in self._faults.all() if fault.get("retry_test") == test]


def _fault(method: str, instruction: str) -> Mapping[str, Any]:
    """The fault that an instruction asks for."""
    for name, other in _METHODS.items():
        if method.startswith(name):
            method = other + method.removeprefix(name)
    broken, status = _BROKEN.fullmatch(instruction), _STATUS.fullmatch(instruction)
    if instruction == "return-reset-connection":
        return {"kind": "drop-request", "method": method}
    if broken is not None:
        after = {"after_bytes": int(broken[1]) * 1024} if broken[1] else {}
        return {"kind": "truncate", "method": method, **after}
    if status is not None and status[2]:
        after = {"after_bytes": int(status[2]) * 1024}
        return {"kind": "truncate", "method": method, "body": "request", "code": _CODE, **after}
    if status is not None:
        return {"kind": "error", "method": method, "http": int(status[1])}
    raise invalid(f"The instruction {instruction} is not supported.")


_CODE = "UNAVAILABLE"  # of all uploads that are refused midway
