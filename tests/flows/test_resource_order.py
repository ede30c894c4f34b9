"""A resource is created after what its requests name, and declares the zone that they name.

Without the edge it works by chance, and always where the local cloud ignores what a request names.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from tests.support.callers import Member
from tests.support.locations import V6E_ZONE, ZONE
from tests.support.projects import Project
from tpuctl.cloud.clients import Cloud
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.access.iam_grants import NodeGrants
from tpuctl.resources.base import CloudKind
from tpuctl.resources.composition import KINDS, kind_of
from tpuctl.resources.project.bucket import Bucket

WORD = re.compile(r"[\w-]+")
EVERYTHING = """
controller: {}
network: {ssh: iap}
job: {retries: {preemption: 1}, secrets: {TOKEN: 'secret:token'}}
"""
DISKS = "data_disks: [{size_gb: 20}]"
# By kind of TPU: its keys in the stack file, its type, and its zone.
STACKS = {
    "node": (DISKS, "v3-8", ZONE),
    "queued": (f"queue: true, {DISKS}", "v3-8", ZONE),
    "tpu": (f"kind: node, {DISKS}", "v3-8", ZONE),
    "instance": ("api: compute", "v6e-4", V6E_ZONE),
    "group": ("api: compute", "v6e-16", V6E_ZONE),
}


def test_stacks_have_every_kind_of_tpu() -> None:
    assert {kind.kind for kind in KINDS if kind.is_tpu} == {*STACKS}


def predecessors(after: Mapping[str, frozenset[str]], address: str) -> set[str]:
    """Everything that is done before this resource."""
    direct = after[address]
    return {*direct}.union(*(predecessors(after, each) for each in direct))


def owners_by_name(addresses: Iterable[str]) -> dict[str, str]:
    """The resources whose names no other resource has.

    Not machines: they are created at the same time, and look each other up later.
    """
    names = [address.partition("/")[2] for address in addresses]
    return {
        name: address
        for name, address in zip(names, addresses, strict=True)
        if names.count(name) == 1 and not kind_of(address).is_machine
    }


def check_location(kind: type[CloudKind], stack: Stack, words: Collection[str]) -> None:
    """By it `up` finds what is left in other zones, and a race knows what waits for its winner."""
    if stack.zone in words and kind is not NodeGrants:  # which read the node's account
        assert kind.is_zonal, f"{kind.__name__}: is_zonal, since its requests name the zone"
    if stack.region in words and kind is not Bucket:  # which stays where it is
        assert kind.is_zonal or kind.is_regional, f"{kind.__name__}: is_zonal or is_regional"
    if kind.is_zonal:
        assert kind.may_be_left(stack), f"{kind.__name__}: may_be_left, since the stack has one"
        assert not kind.unlisted_reason, f"{kind.__name__}: list_all, to find it in other zones"


@pytest.mark.parametrize("kind", STACKS)
async def test_requests_name_what_the_kind_declares(
    project: Project, null_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tpu, type_name, zone = STACKS[kind]
    first = project.stack()
    await first.provision()  # creates the project, in which the secret can be created
    owner = Member.owner(null_cloud)
    path = f"/v1/projects/{project.id}"
    owner.send_ok("POST", f"{path}/services/secretmanager.googleapis.com:enable")
    body = {"replication": {"automatic": {}}}
    await asyncio.to_thread(owner.send_ok, "POST", f"{path}/secrets?secretId=token", json=body)
    bench = project.stack(tpu, EVERYTHING, type_name=type_name, zones=zone)
    prepared = await bench.stack.plan()
    after = prepared.plan.after
    owners = owners_by_name(after)
    for name in (prepared.stack.names.tag, prepared.stack.region):
        owners.pop(name, None)
    words: dict[str, set[str]] = defaultdict(set)
    call = Cloud.call

    async def recorded(self: Cloud, subject: str, method: Any, *args: Any, **fields: Any) -> Any:
        words[subject].update(WORD.findall(f"{method!r} {args} {fields}"))
        return await call(self, subject, method, *args, **fields)

    monkeypatch.setattr(Cloud, "call", recorded)
    await bench.stack.provision(prepared)
    before = {address: predecessors(after, address) for address in after}
    for address in after:
        ordered = before[address] | {other for other in after if address in before[other]}
        used = {owners[word] for word in words[address] & owners.keys()}
        lacking = used - ordered - {address}
        assert not lacking, f"`after` of {address}, whose requests name it, lacks {lacking}"
        check_location(kind_of(address), prepared.stack, words[address])
    assert (await bench.stack.down(delete_bucket=True)).leaks == ()
    assert (await first.stack.down(delete_bucket=True)).leaks == ()
