"""The permissions of a stack's account are necessary and sufficient for the controller to recreate
the TPU, and to take the stack down.

Runs the same code as the controller, as that account, on a cloud without machines, up to the login.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers import Member, grant, make_role, revoke
from tests.support.locations import V6E_ZONE, ZONE
from tests.support.projects import Bench, Project
from tpuctl.api import Tpuctl
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.flows.jobs.recover import remove_nodes
from tpuctl.flows.machines.controller import find_controller
from tpuctl.flows.machines.handover import stack_file
from tpuctl.flows.machines.workers import nodes_of
from tpuctl.flows.stack.controller_down import down_from_controller
from tpuctl.flows.stack.plan import plan
from tpuctl.flows.stack.up import up_without_tpu
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import ignore
from tpuctl.resources.access.custom_roles import RecoveryRole
from tpuctl.resources.access.iam_grants import USER
from tpuctl.resources.composition import belongs_to_tpu, kind_of, resources_of
from tpuctl.resources.project.stack_record import Record

SAMPLE = 2  # permissions that are removed for each kind; `make soak` removes each one
FAR = "bucket: {allow_egress: true}"  # one of the zones is in another region
KINDS = {
    "vm": ("v3-8", "capacity: spot", "controller: {}"),
    "queued": ("v3-8", "capacity: spot, queue: true", "controller: {}"),
    "disk": ("v3-8", "capacity: spot, data_disks: [{size_gb: 10}]", "controller: {}"),
    "node": ("v3-8", "kind: node, capacity: preemptible", ""),
    "instance": ("v6e-4", "api: compute, capacity: spot", "controller: {}"),
    "group": ("v6e-16", "api: compute, capacity: spot", "controller: {}\n" + FAR),
    "nat": ("v3-8", "capacity: spot", "controller: {}\nnetwork: {ssh: iap, nat: true}"),
    "any": ("v6e-4", "capacity: spot, any_of: [{api: tpu}, {api: compute}]", "controller: {}"),
}
ZONES = {"group": f"{V6E_ZONE}, us-central1-b"}  # which needs a template of its own


class Controller:
    """A stack that is up and whose node was preempted, as seen by its controller."""

    def __init__(
        self, bench: Bench, cloud: LocalCloud, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.bench, self.cloud, self.folder = bench, cloud, folder
        self.monkeypatch = monkeypatch
        self.stack = bench.stack.stack
        self.member = f"serviceAccount:{self.stack.service_account}"
        self.node_range = ""
        self.project = f"projects/{self.stack.project}"
        self.account = f"{self.project}/serviceAccounts/{self.stack.service_account}"

    async def preempt_node(self) -> Controller:
        await self.bench.provision()
        # The watchdog's role overlaps with the tested one.
        revoke(self.cloud, self.project, self.stack.names.watchdog_role, self.member)
        if self.stack.is_node:
            name = f"{self.project}/locations/{self.stack.zone}/nodes/{self.stack.names.node}"
            self.node_range = (
                await self.bench.call("tpu_v1", "get_node", {"name": name})
            ).cidr_block
        await self.bench.preempt(self.cloud)
        return self

    @contextmanager
    def program(self) -> Iterator[Tpuctl]:
        """The controller's program, with its stack file and account."""
        path = self.folder / "controllers.yaml"
        file = stack_file(self.stack, "default", "a:ssh-ed25519 A a", self.node_range)
        path.write_text(json.dumps(file), "utf-8")
        with self.monkeypatch.context() as patch:
            patch.setenv("TPUCTL_CONTROLLER", self.stack.names.controller)
            patch.setenv("TPUCTL_LOCAL_CALLER", self.member)
            yield Tpuctl(path, cloud="local", emit=ignore)

    async def recreate_tpu(self) -> None:
        """Recreate the TPU as the controller's program does. Raises on a denied request."""
        with self.program() as stack:
            prepared = await stack.plan()
            kinds = [kind_of(change.address) for change in prepared.plan]
            assert all(map(belongs_to_tpu, kinds)), "only the TPU"
            assert not prepared.plan.is_empty
            await stack.provision(prepared)
            assert [node.state for node in await nodes_of(stack.stack, stack.cloud)] == ["READY"]
            if self.stack.is_node or "compute" in self.stack.apis:
                await self._read_host_keys(stack)
            if "compute" in self.stack.apis:
                await self._list_preemptions(stack)
                await remove_nodes(await stack.plan(), ignore)  # machines that do not answer
            for place in stack.stack.candidates[1:]:
                await stack.provision(await plan(stack.context, place))
            if not self.stack.is_node:
                await down_from_controller(stack.context)

    async def _list_preemptions(self, stack: Tpuctl) -> None:
        where = {"project": self.stack.project, "zone": self.stack.zone}
        client = stack.cloud.client("zone_operations")
        await stack.cloud.call("preemptions", client.list, request=where)

    async def _read_host_keys(self, stack: Tpuctl) -> None:
        await find_controller(stack.stack, stack.cloud)
        where = {"project": self.stack.project, "zone": self.stack.zone}
        client = stack.cloud.client("instances")
        try:
            await stack.cloud.call(
                "host keys",
                client.get_guest_attributes,
                request={**where, "instance": self.stack.names.controller},
            )
        except NotFound:  # machines of this cloud publish no host keys
            return

    def allow(self, *names: str) -> None:
        role = self.stack.names.recovery_role.rpartition("/")[2]
        make_role(self.cloud, role, names, project=self.stack.project)


@pytest.fixture
def controller(
    project: Project, null_cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Awaitable[Controller]]:
    last: list[Bench] = []

    async def make(kind: str) -> Controller:
        if kind == "nat" and last:  # its NAT would serve the next stack, too
            await last[-1].reopen().down()
        type_name, *sections = KINDS[kind]
        zones = ZONES.get(kind, V6E_ZONE if type_name.startswith("v6e") else ZONE)
        bench = project.stack(*sections, type_name=type_name, zones=zones)
        last.append(bench)
        return await Controller(bench, null_cloud, tmp_path, monkeypatch).preempt_node()

    return make


@pytest.mark.parametrize("kind", KINDS)
async def test_grants_are_sufficient(
    controller: Callable[[str], Awaitable[Controller]], kind: str
) -> None:
    node_controller = await controller(kind)
    await node_controller.recreate_tpu()
    status = await node_controller.bench.reopen().status()
    if kind != "node":  # a `down` elsewhere deletes it
        assert {item.kind for item in status.inventory} == {"bucket"}
    assert (await node_controller.bench.reopen().down(delete_bucket=True)).leaks == ()


async def test_grants_are_sufficient_for_a_race(
    project: Project, null_cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller creates the TPU that wins, a group with what it is created from."""
    tpus = "capacity: spot, any_of: [{queue: true}, {type: v6e-16, api: compute}]"
    bench = project.stack(tpus, "controller: {}", type_name="v6e-8", zones=V6E_ZONE)
    remote_control.add_fault(null_cloud, "stockout", type="v6e-8", times="unlimited")
    await up_without_tpu(bench.stack.context, race=True)
    with Controller(bench, null_cloud, tmp_path, monkeypatch).program() as stack:
        await stack.provision(await stack.plan(race=True))
        (node,) = await nodes_of(stack.stack, stack.cloud)
        assert (node.state, node.accelerator_type) == ("READY", "v6e-16")
        await down_from_controller(stack.context)
    assert {item.kind for item in (await bench.reopen().status()).inventory} == {"bucket"}
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()


def recovery_permissions(stack: Tpuctl) -> tuple[str, ...]:
    everything = resources_of(stack.stack, stack.cloud)
    (role,) = (each for each in everything if isinstance(each, RecoveryRole))
    return role.included


async def check_permission_is_required(node_controller: Controller, missing: str) -> None:
    """Run without one permission: the error must name it."""
    node_controller.allow(
        *(
            permission
            for permission in recovery_permissions(node_controller.bench.stack)
            if permission != missing
        )
    )
    # Operations are polled only if they take a while.
    remote_control.change_settings(
        node_controller.cloud, pace="quick" if "perations.get" in missing else "instant"
    )
    try:
        message = missing.replace(".", r"\.")
        if missing == "tpu.nodes.list":  # without it a list is empty, unless all else is, too
            message += "|Node not found"
        with pytest.raises(TpuctlError, match=message):
            await node_controller.recreate_tpu()
    finally:
        remote_control.change_settings(node_controller.cloud, pace="instant")


@pytest.mark.parametrize("kind", KINDS)
async def test_sampled_permissions_are_required(
    controller: Callable[[str], Awaitable[Controller]], kind: str
) -> None:
    for _ in range(SAMPLE):
        node_controller = await controller(kind)
        await check_permission_is_required(
            node_controller, random.choice(recovery_permissions(node_controller.bench.stack))
        )


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
async def test_every_permission_is_required(
    controller: Callable[[str], Awaitable[Controller]], kind: str
) -> None:
    first = await controller(kind)
    for name in recovery_permissions(first.bench.stack):
        await check_permission_is_required(await controller(kind), name)


@pytest.mark.parametrize("kind", ["vm", "queued"])
async def test_act_as_is_granted_only_on_itself(
    controller: Callable[[str], Awaitable[Controller]], null_cloud: LocalCloud, kind: str
) -> None:
    node_controller = await controller(kind)
    revoke(null_cloud, node_controller.account, USER, node_controller.member)
    with pytest.raises(TpuctlError, match=r"iam\.serviceAccounts\.actAs"):
        await node_controller.recreate_tpu()
    grant(null_cloud, node_controller.account, USER, node_controller.member)
    await node_controller.recreate_tpu()
    path = f"/v3/{node_controller.project}:testIamPermissions"
    requested = ["iam.serviceAccounts.actAs", "tpu.nodes.create", "tpu.nodes.update"]
    answer = Member(null_cloud, node_controller.member).send_ok(
        "POST", path, json={"permissions": requested}
    )
    assert answer["permissions"] == ["tpu.nodes.create"], "no other account of the project"


async def test_grants_are_removed_with_stack(project: Project, null_cloud: LocalCloud) -> None:
    """A user's account stays, without permission to act as itself."""
    owner, first = Member.owner(null_cloud), project.stack()
    await first.provision()  # the project, its APIs
    path = f"/v1/projects/{project.id}/serviceAccounts"
    email = owner.send_ok("POST", path, json={"accountId": "given-account"})["email"]
    member = f"serviceAccount:{email}"
    bench = project.stack(f"capacity: spot, service_account: {email}", "controller: {}")
    await bench.provision()

    def roles(policy: Any) -> set[str]:
        bindings = policy.get("bindings", ())
        return {binding["role"] for binding in bindings if member in binding["members"]}

    def on_account() -> set[str]:
        return roles(owner.send_ok("POST", f"{path}/{email}:getIamPolicy", json={}))

    def on_project() -> set[str]:
        return roles(owner.send_ok("POST", f"/v3/projects/{project.id}:getIamPolicy", json={}))

    names = bench.stack.stack.names
    assert on_account() == {USER}
    assert on_project() == {names.watchdog_role, names.recovery_role}
    assert (await bench.reopen().plan()).plan.is_empty
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()
    assert on_account() == on_project() == set()


async def test_recorded_grant_of_deleted_account_is_removed(
    project: Project,
) -> None:
    """An `up` records the grant while a concurrent `down` finishes."""
    bench = project.stack("capacity: spot", "controller: {}")
    await bench.provision()
    record = Record(bench.stack.stack, bench.stack.cloud)
    before = await record.read()
    assert before is not None
    late = next(grant for grant in before.grants if grant.role == USER)
    assert (await bench.reopen().down()).leaks == ()
    await record.update(lambda stack_record: stack_record.with_grants(late))
    assert (await bench.reopen().down()).leaks == ()
    after = await record.read()
    assert after is not None
    assert after.grants == ()
