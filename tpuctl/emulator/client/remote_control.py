"""Faults, settings and calls of a local cloud that runs, from another process.

fault = add_fault(cloud, "hold", method="CreateNode")
wait_held(cloud, fault["id"], 10)      # a request has come that far
remove_fault(cloud, fault["id"])       # and goes on
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from tpuctl.emulator.client.server_process import LocalCloud, request, wait_until
from tpuctl.errors import TimedOut

__all__ = [
    "Fields",
    "add_fault",
    "calls",
    "change_settings",
    "fault",
    "faults",
    "release",
    "remove_all_faults",
    "remove_fault",
    "settings",
    "token",
    "wait_held",
]

Fields = dict[str, Any]


def add_fault(cloud: LocalCloud, kind: str, **fields: Any) -> Fields:
    """Make a fault and return it with its id. Usage tells what was wrong; None says nothing."""
    return request(cloud, "POST", "/_local/faults", {"kind": kind, **fields})


def faults(cloud: LocalCloud) -> list[Fields]:
    """All of them in the order in which they were added, with how often each was `used`."""
    return list(request(cloud, "GET", "/_local/faults")["faults"])


def fault(cloud: LocalCloud, fault_id: str) -> Fields:
    return request(cloud, "GET", _path(fault_id))


def remove_fault(cloud: LocalCloud, fault_id: str) -> Fields:
    """Take a fault away; what it held goes on. Returns it as it was."""
    return request(cloud, "DELETE", _path(fault_id))


def remove_all_faults(cloud: LocalCloud) -> list[Fields]:
    return list(request(cloud, "DELETE", "/_local/faults")["faults"])


def release(cloud: LocalCloud, fault_id: str, *, act: bool = True) -> int:
    """Let the requests that a fault holds go on, or without `act` cut them off; how many."""
    answer = request(cloud, "POST", f"{_path(fault_id)}/release", {"act": act})
    return int(answer["released"])


def wait_held(cloud: LocalCloud, fault_id: str, timeout: float) -> list[Fields]:
    """The requests that a fault holds, once there is one. TimedOut when there is none so long."""
    requests: list[Fields] = []

    def is_held() -> bool:
        requests.extend(fault(cloud, fault_id)["waiting"])
        return bool(requests)

    if not wait_until(is_held, timeout):
        raise TimedOut(
            "Nothing was held",
            f"no request met {fault_id} within {timeout:g} s",
            hint="See which requests the faults have met so far:\n    tpuctl local fault list",
        )
    return requests


def settings(cloud: LocalCloud) -> Fields:
    """Every setting with its value."""
    return request(cloud, "GET", "/_local/settings")


def change_settings(cloud: LocalCloud, **changes: Any) -> Fields:
    """Change some and return all, as in `change_settings(cloud, nodes="denied")`."""
    return request(cloud, "PATCH", "/_local/settings", changes)


def token(cloud: LocalCloud, member: str, scopes: Collection[str] = ()) -> str:
    """What a caller presents who is not the owner: `user:ann@example.com`, `serviceAccount:EMAIL`.

    It may do what policies grant to that member, and with scopes no more than these let it.
    """
    fields = {"member": member, "scopes": sorted(scopes)}
    return str(request(cloud, "POST", "/_local/tokens", fields)["token"])


def calls(cloud: LocalCloud, since: int = 0) -> list[Fields]:
    """The API calls answered after number `since`: method, project, caller, status, mutating.

    The last 10,000 are kept; their numbers begin at 1 with each start of the server.
    """
    return list(request(cloud, "GET", f"/_local/calls?since={since}")["calls"])


def _path(fault_id: str) -> str:
    return f"/_local/faults/{quote(fault_id, safe='')}"
