"""A firewall rule that denies SSH to all but those whom the stack's own rule allows.

The network `default` has a rule that allows SSH from the whole internet to every machine in it
(`default-allow-ssh`, priority 65534: cloud.google.com/firewall/docs/firewalls#more_rules_default
_vpc). This rule takes precedence over that one, but not over rules with the default priority of
1000, such as the stack's own.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from tpuctl.model.plan import Change
from tpuctl.resources.network.network import Firewall, Network, RuleState

PRIORITY = 65533
# The network's other rules still apply to internal addresses.
INSIDE = IPv4Network("10.0.0.0/8")
OUTSIDE = tuple(sorted(map(str, IPv4Network("0.0.0.0/0").address_exclude(INSIDE))))


class SshDenyRule(Firewall):
    """Created in networks that the stack did not create; its own network allows nothing by
    default."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, OUTSIDE)

    @property
    def name(self) -> str:
        return self.stack.names.ssh_deny_rule

    async def observe(self) -> RuleState | None:
        return await self.observe_with_network()

    def diff(self, observed: RuleState | None) -> Change:
        state = observed or RuleState(None, None)
        if state.rule is None:
            if state.is_in_own_network:
                return self.nothing("the stack's own network allows nothing by default")
            return self.create("denies SSH to all others: `default` allows it from anywhere")
        self._check(state.rule)
        fields = [
            name
            for name, actual, desired in (
                ("sourceRanges", set(state.rule.source_ranges), set(self.sources)),
                ("denied", _denied(state.rule), {("tcp", "22")}),
                ("targetTags", set(state.rule.target_tags), {self.stack.names.tag}),
                ("priority", state.rule.priority, PRIORITY),
            )
            if actual != desired
        ]
        if fields:
            return self.update(f"{' and '.join(fields)} changed", fields)
        return self.nothing("denies SSH to all others")

    def removal(self, observed: RuleState | None) -> Change:
        return super().removal(observed.rule if observed is not None else None)

    async def revised(self, change: Change) -> Change:
        return await self.revised_for_network(change)

    async def _desired(self) -> dict[str, Any]:
        desired = await super()._desired()
        for name in ("allowed", "source_tags"):
            del desired[name]
        return {
            **desired,
            "priority": PRIORITY,
            "denied": [{"I_p_protocol": "tcp", "ports": ["22"]}],
        }


def _denied(rule: Any) -> set[tuple[str, str]]:
    return {(str(entry.I_p_protocol), str(port)) for entry in rule.denied for port in entry.ports}
