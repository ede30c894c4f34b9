"""Access to a stack's machines: its firewall rules, machines and permissions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import Bench, Project
from tpuctl.cloud.operations import compute_operation
from tpuctl.errors import Conflict, Diagnostic, InvalidStack
from tpuctl.flows.doctor.project import ProjectChecks
from tpuctl.flows.machines.workers import controller_transport
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import WarningIssued
from tpuctl.model.troubleshooting.diagnosis import CheckState
from tpuctl.remote.iap import Destination

STRANGER, HOME, OFFICE = "198.51.100.9", "203.0.113.7", "192.0.2.4"
RELAY, INSIDE = "35.235.240.77", "10.164.0.9"
ANYWHERE = (STRANGER, HOME, OFFICE, RELAY, INSIDE)


def is_allowed(rules: Sequence[Any], source: str, tags: set[str], port: int) -> bool:
    """By cloud.google.com/firewall/docs/firewalls: by priority, deny before allow."""
    address = ipaddress.ip_address(source)
    fitting = [
        (rule.priority, bool(rule.allowed))
        for rule in rules
        if rule.direction == "INGRESS"
        and (not rule.target_tags or tags & {*rule.target_tags})
        and any(address in ipaddress.ip_network(network) for network in rule.source_ranges)
        and any(
            entry.I_p_protocol == "tcp" and any(_covers(ports, port) for ports in entry.ports)
            for entry in (*rule.allowed, *rule.denied)
        )
    ]
    return bool(fitting) and min(fitting)[1]


def _covers(ports: str, port: int) -> bool:
    first, _, last = ports.partition("-")
    return int(first) <= port <= int(last or first)


async def firewall_rules(bench: Bench) -> list[Any]:
    return list(await bench.call("firewalls", "list", project=bench.stack.stack.project))


async def allowed_addresses(bench: Bench, port: int = 22) -> set[str]:
    """The addresses that can reach that port of the stack's machines."""
    rules, tags = await firewall_rules(bench), {bench.stack.stack.names.tag}
    return {address for address in ANYWHERE if is_allowed(rules, address, tags, port)}


async def node_tags(bench: Bench) -> set[str]:
    stack = bench.stack.stack
    name = f"projects/{stack.project}/locations/{stack.zone}/nodes/{stack.names.node}"
    found: set[str] = set((await bench.call("tpu", "get_node", {"name": name})).tags)
    return found


async def test_ssh_is_allowed_only_from_named_addresses(project: Project) -> None:
    """In the `default` network, which has a rule that allows everyone."""
    bench = project.stack("", "network: {allow_from: [203.0.113.7], allow: ['tcp:6006']}")
    await bench.provision()
    assert await node_tags(bench) >= {bench.stack.stack.names.tag}
    assert await allowed_addresses(bench) == {HOME, INSIDE}
    assert await allowed_addresses(bench, 6006) == {HOME, INSIDE}
    others = {
        address
        for address in ANYWHERE
        if is_allowed(await firewall_rules(bench), address, {"another"}, 22)
    }
    assert others == set(ANYWHERE), "other machines are not affected"

    file = bench.stack.stack_file
    file.write_text(file.read_text("utf-8").replace("203.0.113.7", "192.0.2.0/24"), "utf-8")
    moved = Bench(bench.reopen(), bench.events)
    await moved.provision()
    assert await allowed_addresses(moved) == {OFFICE, INSIDE}, (
        "the previous address is no longer allowed"
    )
    assert (await moved.stack.down(delete_bucket=True)).leaks == ()
    names = {rule.name for rule in await firewall_rules(moved)}
    assert not any(name.startswith(moved.stack.stack.name) for name in names)


async def test_controller_has_the_same_firewall(project: Project) -> None:
    bench = project.stack("kind: node", "network: {allow_from: [203.0.113.7]}")
    await bench.provision()
    stack = bench.stack.stack
    machine = await bench.call(
        *("instances", "get"),
        project=stack.project,
        zone=stack.zone,
        instance=stack.names.controller,
    )
    tags = set(machine.tags.items)
    rules = await firewall_rules(bench)
    assert {address for address in ANYWHERE if is_allowed(rules, address, tags, 22)} == {
        HOME,
        INSIDE,
    }


async def test_iap_allows_only_its_relay(project: Project) -> None:
    bench = project.stack("", "network: {ssh: iap}\ncontroller: {}")
    await bench.provision()
    stack = bench.stack.stack
    assert await allowed_addresses(bench) == {RELAY, INSIDE}
    node = await bench.stack.node()
    assert node.addresses == node.inner_addresses, "no external address"
    machine = await bench.call(
        *("instances", "get"),
        project=stack.project,
        zone=stack.zone,
        instance=stack.names.controller,
    )
    assert not machine.network_interfaces[0].access_configs
    subnetwork = await bench.call(
        *("subnetworks", "get"),
        project=stack.project,
        region=stack.region,
        subnetwork="default",
    )
    assert subnetwork.private_ip_google_access
    name = f"projects/{stack.project}/services/iap.googleapis.com"
    assert (await bench.call("services", "get_service", {"name": name})).state.name == "ENABLED"
    diagnostics = [getattr(event, "diagnostic", None) for event in bench.events]
    (warning,) = [
        diagnostic
        for diagnostic in diagnostics
        if diagnostic and "external addresses" in diagnostic.summary
    ]
    assert "Cloud NAT" in warning.detail
    assert "    network: {nat: true}" in warning.hint
    assert "install tpuctl" not in warning.detail, "it comes from the bucket"
    assert (await bench.stack.plan()).plan.is_empty

    (worker,) = (await bench.stack.transports()).values()
    driver = await controller_transport(
        stack,
        bench.stack.cloud,
        key=bench.stack.key.path,
        known_hosts=bench.folder / "known_hosts",
        emit=bench.events.append,
    )
    name = f"t1v-n-{stack.names.node}-w-0"  # the machine's hostname
    for target, instance in ((worker, name), (driver, stack.names.controller)):
        assert target.address.route is not None
        assert target.address.route.destination == Destination(stack.project, stack.zone, instance)
    assert (await bench.stack.down(delete_bucket=True)).leaks == ()


async def test_missing_tunnel_permission_is_reported_before_creation(
    project: Project, null_cloud: server_process.LocalCloud
) -> None:
    """A warning: the permission may be granted on the machine, or by a condition."""
    bench = project.stack("", "network: {ssh: iap}")
    await project.stack().provision()  # creates the project
    before = remote_control.settings(null_cloud)["denied_permissions"]
    try:
        denied = [*before, "iap.tunnelInstances.accessViaIAP"]
        remote_control.change_settings(null_cloud, denied_permissions=denied)
        await bench.stack.plan()
    finally:
        remote_control.change_settings(null_cloud, denied_permissions=before)
    (warning,) = [
        event.diagnostic
        for event in bench.events
        if isinstance(event, WarningIssued) and event.diagnostic.summary == "IAP may deny access"
    ]
    assert "--role=roles/iap.tunnelResourceAccessor" in warning.hint
    bench.events.clear()
    await bench.stack.plan()
    assert "IAP may deny access" not in str(bench.events)


@pytest.mark.parametrize(
    ("network", "names"),
    [
        ("{ssh: iap, allow_from: [203.0.113.7]}", "allow_from"),
        ("{allow_from: ['2001:db8::/32']}", "IPv6"),
        ("{allow_from: [home]}", "home"),
        ("{allow_from: [203.0.113.7/24]}", "203.0.113.7/24"),
    ],
)
def test_unusable_source_ranges_are_rejected(project: Project, network: str, names: str) -> None:
    bench = project.stack("", f"network: {network}")
    with pytest.raises(InvalidStack) as caught:
        bench.stack.stack.require_valid()
    assert names in str(caught.value)
    assert caught.value.diagnostics[0].hint
    assert "tpuctl.yaml:" in caught.value.diagnostics[0].where


async def test_bucket_of_another_project_is_not_used(
    project: Project, null_cloud: server_process.LocalCloud, tmp_path: Path
) -> None:
    """Names are global and can be guessed, and anyone can set labels: nothing is stored in another
    project's bucket, and nothing in it is run."""
    bench = project.stack("kind: vm")
    stack = project.stack()  # another stack creates the project before the first `up`
    await stack.provision()
    squatter = Project(tmp_path).stack(name="squatter")
    await squatter.provision()
    client = squatter.stack.cloud.client("storage")
    bucket = client.bucket(bench.stack.stack.bucket)
    bucket.labels = {"tpuctl-stack": bench.stack.stack.name}
    await squatter.stack.cloud.call(
        *("squatting", bucket.create),
        project=squatter.stack.stack.project,
        location="europe-west4",
    )
    with pytest.raises(Conflict, match="not part of stack") as caught:
        await bench.stack.plan()
    assert "bucket: {name:" in caught.value.diagnostics[0].hint
    await bench.stack.down(delete_bucket=True)
    assert await squatter.stack.cloud.call("it", client.get_bucket, bucket.name) is not None


async def _delete_rules(bench: Bench, *names: str) -> None:
    project = bench.stack.stack.project
    for name in names:
        operation = await bench.call("firewalls", "delete_unary", project=project, firewall=name)
        await compute_operation(bench.stack.cloud, operation, subject=name, seconds=60)


async def test_shared_network_that_separates_workers_is_reported(project: Project) -> None:
    """By `plan` and `doctor`, until a rule as in their hint exists; single machines need none."""
    single = project.stack()
    await single.provision()
    await _delete_rules(single, "default-allow-internal")
    assert await reported(single) == []
    slices = project.stack(type_name="v3-32")
    (warning,) = await reported(slices)
    assert warning.summary == "Workers cannot reach each other"
    assert "8482" in warning.detail
    assert "8081" not in warning.detail
    two = project.stack("slices: 2", type_name="v5litepod-8", zones="europe-west4-b")
    assert "8081" in (await reported(two))[0].detail
    finding = await ProjectChecks(slices.stack.stack, lambda: slices.stack.cloud).network()
    assert (finding.state, finding.message) == (CheckState.WARNING, warning.detail)

    allow, ranges, tags = (
        match[1]
        for option in ("allow", "source-ranges", "target-tags")
        if (match := re.search(rf"--{option}=(\S+)", warning.hint))
    )
    rule = {
        "name": "as-in-the-hint",
        "network": f"projects/{project.id}/global/networks/default",
        "allowed": [{"I_p_protocol": "tcp", "ports": re.findall(r"tcp:([\d-]+)", allow)}],
        "source_ranges": [ranges],
        "target_tags": [tags],
    }
    operation = await slices.call(
        "firewalls", "insert_unary", project=project.id, firewall_resource=rule
    )
    await compute_operation(slices.stack.cloud, operation, subject="rule", seconds=60)
    assert await reported(slices) == []
    await single.stack.down(delete_bucket=True)


async def test_unlisted_runtime_is_requested_with_a_warning(project: Project) -> None:
    bench = project.stack("runtime: tpu-vm-tf-2.18.1-pjrt")
    await bench.stack.plan()
    [warning] = [each.diagnostic for each in bench.events if isinstance(each, WarningIssued)]
    assert warning.summary == "Unknown runtime"
    assert "requests it as it is" in warning.detail
    assert "tpu-vm-tf-2.18.0-pjrt-v5p-and-below" in warning.hint
    assert "does not exist" not in f"{warning.detail} {warning.hint}"
    await bench.provision()
    stack = bench.stack.stack
    name = f"projects/{stack.project}/locations/{stack.zone}/nodes/{stack.names.node}"
    node = await bench.call("tpu", "get_node", {"name": name})
    assert node.runtime_version == "tpu-vm-tf-2.18.1-pjrt"


async def reported(bench: Bench) -> list[Diagnostic]:
    """The warnings of a plan about the workers' network."""
    bench.events.clear()
    await bench.stack.plan()
    warnings = (event.diagnostic for event in bench.events if isinstance(event, WarningIssued))
    return [warning for warning in warnings if "Workers" in warning.summary]
