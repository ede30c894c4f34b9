"""A firewall rule that lets the workers of a stack's TPU reach each other.

A new network allows nothing. Google opens some ports for TPUs, but not the one at which JAX's
coordinator listens since 0.8.1 (jax-ml/jax#35905): `jax.distributed.initialize()` then hangs until
its timeout. Others listen at ports that change: Gloo, and with it torchrun. As in the network
`default`, all TCP ports are open inside.
"""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, Diagnostic, NotFound
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.workers.worker_ports import MEGASCALE_PORT, REQUIRED, FirewallRule, closed_ports
from tpuctl.resources.network.network import Firewall, Network, RuleState

ALL_PORTS = "0-65535"  # as in the rule `default-allow-internal`


class WorkerRule(Firewall):
    """Created in the stack's own network, for TPU VMs: TPU nodes are not in it."""

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return super().applies(stack) and not stack.is_node

    def __init__(self, network: Network) -> None:
        super().__init__(network, ())

    @property
    def name(self) -> str:
        return self.stack.names.worker_rule

    async def observe(self) -> RuleState | None:
        return await self.observe_with_network()

    async def revised(self, change: Change) -> Change:
        return await self.revised_for_network(change)

    def diff(self, observed: RuleState | None) -> Change:
        state = observed or RuleState(None, None)
        if state.rule is None and state.networks is not None and not state.is_in_own_network:
            return self.nothing("the network is shared: its own rules apply")
        if state.rule is None and state.networks is None:
            return self.create(f"{self._purpose}, unless the network is `default`")
        return super().diff(state.rule)

    @property
    def _purpose(self) -> str:
        return "lets workers reach each other"

    def removal(self, observed: RuleState | None) -> Change:
        return super().removal(observed.rule if observed is not None else None)

    @property
    def _source_tags(self) -> list[str]:
        return [self.stack.names.tag]

    def _desired_ports(self) -> set[tuple[str, str]]:
        """Also those that the stack file opens to the outside."""
        opened = super()._desired_ports()
        return {("tcp", ALL_PORTS), *(entry for entry in opened if entry[0] != "tcp")}


async def closed_ports_warning(stack: Stack, cloud: Cloud, network: str) -> Diagnostic | None:
    """The warning that a shared network's rules keep the workers from reaching each other."""
    if stack.is_node or stack.worker_count == 1 or network == stack.names.network:
        return None
    link, request = f"/global/networks/{network}", {"project": stack.network_project}
    try:
        pager = await cloud.call("firewall rules", cloud.client("firewalls").list, request=request)
        rules = [
            parsed
            for rule in pager
            if rule.network.endswith(link) and (parsed := ingress_rule(rule)) is not None
        ]
        subnetwork = await cloud.call(
            "subnetwork",
            cloud.client("subnetworks").get,
            project=stack.network_project,
            region=stack.region,
            subnetwork=stack.subnetwork_name or network,
        )
    except (NotFound, Denied):
        return None  # other checks report these
    source = subnetwork.ip_cidr_range
    ports = (*REQUIRED, MEGASCALE_PORT) if stack.slices > 1 else REQUIRED
    closed = min((closed_ports(rules, source, tag, ports) for tag in stack.tags), key=len)
    if not closed:
        return None
    return Diagnostic(
        "Workers cannot reach each other",
        f"the rules of network {network} close ports {', '.join(map(str, closed))} between the "
        f"{stack.worker_count} workers: jax.distributed.initialize() and others hang",
        f"Allow them with\n    gcloud compute firewall-rules create {network}-tpu-workers "
        f"--project={stack.network_project} --network={network} --allow=tcp "
        f"--source-ranges={source} --target-tags={stack.names.tag}",
    )


def ingress_rule(rule: Any) -> FirewallRule | None:
    """The rule as compared here; None if it is disabled or for outgoing traffic."""
    if rule.disabled or rule.direction == "EGRESS":
        return None
    allows = bool(rule.allowed)
    entries = rule.allowed if allows else rule.denied
    return FirewallRule(
        priority=rule.priority,
        allows=allows,
        ports=tuple(
            (str(entry.I_p_protocol), *_range(ports))
            for entry in entries
            for ports in (entry.ports or ["0-65535"])
        ),
        source_ranges=tuple(rule.source_ranges),
        source_tags=tuple(rule.source_tags),
        target_tags=tuple(rule.target_tags),
        is_restricted=bool(rule.source_service_accounts or rule.target_service_accounts),
    )


def _range(ports: str) -> tuple[int, int]:
    first, _, last = ports.partition("-")
    return int(first), int(last or first)
