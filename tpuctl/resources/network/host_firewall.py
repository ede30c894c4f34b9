"""The firewall rule that allows SSH, in a host project (Shared VPC), whose rules are its
administrator's: made there only by those who may.

A network's rules apply to the machines of all projects that share it. So this rule has the stack's
project in its name and its tag, and it is the only one: what else is open is not for a stack to
decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpuctl.errors import Denied, Diagnostic, NotFound
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.workers.worker_ports import closed_ports
from tpuctl.resources.network.host_project import may_change_rules
from tpuctl.resources.network.network import Firewall, Network
from tpuctl.resources.network.worker_rule import ingress_rule

SSH_PORT = 22


@dataclass(frozen=True)
class HostRules:
    """What is known of the host project's rules."""

    may_change: bool
    rule: Any | None  # the stack's own
    is_open: bool | None  # SSH from the stack's sources; None: the rules cannot be seen


class HostFirewall(Firewall):
    """The stack's rule in the host project; without permission, whether it is needed."""

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.has_shared_network

    def __init__(self, network: Network, sources: tuple[str, ...]) -> None:
        super().__init__(network, sources)
        self.observed: HostRules | None = None

    async def observe(self) -> HostRules:
        if await may_change_rules(self.stack, self.cloud):
            self.observed = HostRules(True, await self._find(), None)
        else:
            self.observed = HostRules(False, None, await self._is_open())
        return self.observed

    def diff(self, observed: HostRules | None) -> Change:
        assert observed is not None, "always observed"
        if observed.may_change:
            return super().diff(observed.rule)
        if observed.is_open is False:
            raise Denied(
                "SSH is closed in the host project",
                f"no rule of network {self.network.name} allows SSH from "
                f"{', '.join(self.sources)}, and you may not create one in project "
                f"{self.stack.network_project}",
                hint=f"Ask its administrator to run\n    {self.command}",
            )
        host = self.stack.network_project
        if observed.is_open is None:
            return self.nothing(f"project {host} decides; you may not see its rules")
        return self.nothing(f"rules of project {host} allow SSH from {', '.join(self.sources)}")

    def removal(self, observed: HostRules | None) -> Change:
        return super().removal(observed.rule if observed is not None else None)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What cannot be checked."""
        if self.observed is None or self.observed.may_change or self.observed.is_open is not None:
            return ()
        return (
            Diagnostic(
                "SSH may be closed",
                f"you may not see the firewall rules of project {self.stack.network_project}",
                f"If machines cannot be reached, ask its administrator to run\n    {self.command}",
            ),
        )

    @property
    def command(self) -> str:
        """The rule as an administrator creates it."""
        ports = ",".join(f"{protocol}:{port}" for protocol, port in sorted(self._desired_ports()))
        return (
            f"gcloud compute firewall-rules create {self.name} "
            f"--project={self.stack.network_project} --network={self.network.name} "
            f"--allow={ports} --source-ranges={','.join(self.sources)} "
            f"--target-tags={self.stack.names.tag}"
            + "".join(f" --source-tags={tag}" for tag in self._source_tags)
        )

    async def _is_open(self) -> bool | None:
        """Whether the rules in force allow SSH from all sources."""
        where = {"project": self.stack.network_project, "network": self.network.name}
        try:
            effective = await self.call("networks", "get_effective_firewalls", **where)
        except (Denied, NotFound):
            return None
        if any(policy.rules for policy in effective.firewall_policys):
            return None  # policies of the organization or the network, which come first
        rules = [rule for each in effective.firewalls if (rule := ingress_rule(each)) is not None]
        return any(
            not any(closed_ports(rules, source, tag, (SSH_PORT,)) for source in self.sources)
            for tag in self.stack.tags
        )
