"""Stacks in the network of a host project (Shared VPC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.callers import grant
from tests.support.gcloud import make_project
from tests.support.locations import PROJECT, V6E_ZONE, ZONE
from tests.support.projects import Bench, Project
from tests.support.shared_vpc import GROUP_AGENT, TPU_AGENT, HostProject, agent
from tests.support.stack_jobs import displayed_log
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.catalog import region_of
from tpuctl.errors import Conflict, Denied, Diagnostic
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.plan import Action

ANN = "user:ann@example.com"
# What the suite does not try, `make soak` does.
SAMPLE = ("vm", "instance")
KINDS = {
    "vm": ("", "v3-8", ZONE, "controller: {}"),
    "queued": ("queue: true", "v3-8", ZONE, ""),
    "node": ("kind: node", "v3-8", ZONE, ""),
    "instance": ("api: compute", "v6e-4", V6E_ZONE, "controller: {}"),
    "group": ("api: compute", "v6e-16", V6E_ZONE, ""),
}


class Company:
    """A service project, its host project, and stacks in the host's network."""

    def __init__(self, cloud: LocalCloud, project: Project) -> None:
        self.cloud, self.project = cloud, project
        make_project(cloud, "tpu", "compute", "iam", project=project.id)

    def host(self, zone: str = ZONE, *, share: bool = True) -> HostProject:
        host = HostProject(self.cloud, region_of(zone))
        if share:
            host.share_with(self.project.id)
            host.allow(agent(self.cloud, self.project.id, TPU_AGENT), "roles/tpu.xpnAgent")
            host.allow(agent(self.cloud, self.project.id, GROUP_AGENT))
        return host

    def stack(self, host: HostProject, kind: str = "vm", more: str = "") -> Bench:
        tpu, type_name, zone, extra = KINDS[kind]
        node_range = ", node_range: service-networking" if kind == "node" else ""
        network = f"network: {{name: {host.network}, subnetwork: tpus{node_range}{more}}}"
        return self.project.stack(tpu, f"{network}\n{extra}", type_name=type_name, zones=zone)


@pytest.fixture
def company(null_cloud: LocalCloud, project: Project) -> Company:
    return Company(null_cloud, project)


@pytest.fixture
def as_ann(company: Company, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ann owns the service project, and has nothing else yet."""

    def switch_caller() -> None:
        for role in ("owner", "storage.admin"):
            grant(company.cloud, f"projects/{company.project.id}", f"roles/{role}", ANN)
        monkeypatch.setenv("TPUCTL_LOCAL_CALLER", ANN)

    return switch_caller


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in SAMPLE else pytest.mark.soak) for kind in KINDS],
)
async def test_all_machines_are_in_the_network_of_the_host(company: Company, kind: str) -> None:
    host = company.host(KINDS[kind][2])
    bench = company.stack(host, kind)
    await bench.provision()
    names = bench.stack.stack.names
    assert names.ssh_rule == f"{company.project.id}-{names.stack}-ssh"
    rule = host.rules()[names.ssh_rule]
    assert rule["network"].endswith(host.network)
    assert rule["targetTags"] == [f"{company.project.id}-{names.stack}-tpu"]
    assert len(host.rules()) == 1
    users = used_networks(company, KINDS[kind][2])
    assert set(users) == {host.network}
    assert (await bench.reopen().plan()).plan.is_empty
    await bench.stack.down()
    assert host.rules() == {}


def used_networks(company: Company, zone: str) -> list[str]:
    """The networks of all machines in the service project."""
    project, owner = company.project.id, company.host(share=False).owner
    paths = {
        f"/v2/projects/{project}/locations/{zone}/nodes": "nodes",
        f"/v1/projects/{project}/locations/{zone}/nodes": "nodes",
        f"/compute/v1/projects/{project}/zones/{zone}/instances": "items",
    }
    rows = [row for path, key in paths.items() for row in owner.send_ok("GET", path).get(key, [])]
    networks = []
    for row in rows:
        interface = row.get("networkConfig") or (row.get("networkInterfaces") or [row])[0]
        networks.append("projects/" + interface["network"].rpartition("projects/")[2])
    return networks


async def test_rules_of_the_host_are_made_only_by_those_who_may(
    company: Company, as_ann: Any
) -> None:
    host = company.host()
    host.allow_on_subnetwork(ANN)
    as_ann()
    bench = company.stack(host, more=", allow_from: [203.0.113.7], tags: [tpus]")
    names = bench.stack.stack.names
    command = (
        f"gcloud compute firewall-rules create {names.ssh_rule} --project={host.id} "
        f"--network=corp --allow=tcp:22 --source-ranges=203.0.113.7 --target-tags={names.tag}"
    )
    plan = (await bench.stack.plan()).plan
    (change,) = [each for each in plan if each.address.startswith("firewall/")]
    assert (change.action, "may not see" in change.because) == (Action.NOTHING, True)
    warnings = [event.diagnostic for event in bench.events if isinstance(event, WarningIssued)]
    assert any(command in warning.hint for warning in warnings)
    host.allow(ANN)
    with pytest.raises(Denied) as refused:
        await bench.reopen().plan()
    assert command in refused.value.diagnostics[0].hint
    assert host.rules() == {}
    host.allow_port("corp-ssh", sourceRanges=["203.0.113.0/24"], targetTags=["tpus"])
    await bench.provision()
    assert [*host.rules()] == ["corp-ssh"]
    await bench.stack.down()
    assert [*host.rules()] == ["corp-ssh"]


async def test_use_of_the_subnetwork_is_checked_first(company: Company, as_ann: Any) -> None:
    host = company.host()
    as_ann()
    bench = company.stack(host)
    grants = (
        f"gcloud compute networks subnets add-iam-policy-binding tpus --project={host.id} "
        f"--region={host.region} --member=user:YOU --role=roles/compute.networkUser"
    )
    with pytest.raises(Denied) as refused:
        await bench.stack.plan()
    assert "compute.subnetworks.use" in str(refused.value)
    assert grants in refused.value.diagnostics[0].hint
    code, out, _ = bench.type("doctor")
    assert (code, grants.replace("user:YOU", ANN) in out) == (77, True), out
    assert used_networks(company, ZONE) == []


async def test_agents_without_a_role_are_named(company: Company) -> None:
    host = company.host(V6E_ZONE, share=False)
    host.share_with(company.project.id)
    bench = company.stack(host, "group")
    await bench.stack.plan()
    (warning,) = agent_warnings(bench)
    member = agent(company.cloud, company.project.id, GROUP_AGENT)
    assert f"--member={member} --role=roles/compute.networkUser" in warning.hint
    host.allow(member)
    bench.events.clear()
    await bench.reopen().plan()
    assert not agent_warnings(bench)


def agent_warnings(bench: Bench) -> list[Diagnostic]:
    warnings = [event.diagnostic for event in bench.events if isinstance(event, WarningIssued)]
    return [warning for warning in warnings if "agent" in warning.summary]


async def test_down_does_not_need_the_host_project(company: Company, as_ann: Any) -> None:
    host = company.host()
    bench = company.stack(host, more=", ssh: internal")
    body = {"privateIpGoogleAccess": True}
    host.do(f"regions/{host.region}/subnetworks/tpus/setPrivateIpGoogleAccess", body)
    await bench.provision()
    resource = {"xpnResource": {"id": company.project.id, "type": "PROJECT"}}
    host.do("disableXpnResource", resource)
    as_ann()
    done = await bench.reopen().down(delete_bucket=True)
    assert done.leaks == ()
    assert used_networks(company, ZONE) == []
    assert [*host.rules()] == [bench.stack.stack.names.ssh_rule], "which Ann may not see"


async def test_project_must_be_attached(company: Company) -> None:
    host = company.host(share=False)
    bench = company.stack(host)
    with pytest.raises(Conflict) as refused:
        await bench.stack.plan()
    attach = f"associated-projects add {company.project.id} --host-project={host.id}"
    assert attach in refused.value.diagnostics[0].hint


JOB = """\
import urllib.error, urllib.request
import small_library
print("small-library", small_library.__version__)
try:
    urllib.request.urlopen("https://example.invalid/simple", timeout=20)
except urllib.error.URLError as error:
    print(error)
"""


async def test_job_in_a_network_that_reaches_nothing_but_google(
    make_stack: Callable[..., Tpuctl],
    local_cloud: LocalCloud,
    events: list[Event],
) -> None:
    """Of another project, without addresses: the job, its packages and its log use the bucket."""
    host = HostProject(local_cloud, region_of(ZONE))
    host.share_with(PROJECT)
    host.allow(agent(local_cloud, PROJECT, TPU_AGENT), "roles/tpu.xpnAgent")
    body = {"privateIpGoogleAccess": True}
    host.do(f"regions/{host.region}/subnetworks/tpus/setPrivateIpGoogleAccess", body)
    host.allow_port("iap", sourceRanges=["35.235.240.0/20"])
    network = f"network: {{name: {host.network}, subnetwork: tpus, ssh: iap}}\n"
    stack = make_stack(zone=ZONE, extra=network)
    try:
        await stack.up()
        node = await stack.node()
        assert node.addresses == node.inner_addresses
        script = stack.stack_file.parent / "job" / "train.py"
        script.parent.mkdir()
        script.write_text(JOB, "utf-8")
        make_wheel(script.parent / "wheels", "small-library", "3.0")
        assert await stack.run(script) == 0
    finally:
        await stack.down(delete_bucket=True)
        resource = {"xpnResource": {"id": PROJECT, "type": "PROJECT"}}
        host.do("disableXpnResource", resource)
    log = displayed_log(events, 0)
    assert "small-library 3.0" in log
    assert "504" in log, log


async def test_private_access_is_the_administrators(company: Company) -> None:
    host = company.host()
    bench = company.stack(host, more=", ssh: internal")
    with pytest.raises(Denied) as refused:
        await bench.stack.plan()
    assert "--enable-private-ip-google-access" in refused.value.diagnostics[0].hint
    body = {"privateIpGoogleAccess": True}
    host.do(f"regions/{host.region}/subnetworks/tpus/setPrivateIpGoogleAccess", body)
    await bench.provision()
