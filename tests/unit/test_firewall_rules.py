"""Firewall rules of VPC networks, as in cloud.google.com/firewall/docs/firewalls.

Its sections are named beside the cases.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from tpuctl.emulator.state.firewall_rules import EGRESS, INGRESS, Identity, Peer, deciding_rule

TCP22 = [{"IPProtocol": "tcp", "ports": ["22"]}]
ALLOW: dict[str, Any] = {
    "name": "allow",
    "direction": "INGRESS",
    "disabled": False,
    "priority": 1000,
    "sourceRanges": ["35.235.240.0/20"],
    "allowed": TCP22,
}
DENY = {**ALLOW, "name": "deny", "denied": TCP22, "allowed": None}
RELAY = Peer(IPv4Address("35.235.240.1"))
MACHINE = Identity(frozenset({"bert-tpu"}), "job@lab.iam.gserviceaccount.com")
NEIGHBOR = Peer(
    IPv4Address("10.164.0.9"), Identity(frozenset({"web"}), "web@lab.iam.gserviceaccount.com")
)
ONLY_TAGS = {"sourceRanges": [], "sourceTags": ["web"]}
ONLY_ACCOUNTS = {"sourceRanges": [], "sourceServiceAccounts": ["web@lab.iam.gserviceaccount.com"]}


def decide(rules: list[dict[str, Any]], direction: str, peer: Peer, port: int) -> str:
    complete = [{key: value for key, value in rule.items() if value is not None} for rule in rules]
    rule = deciding_rule(complete, direction, MACHINE, peer, port)
    return "implied" if rule is None else str(rule["name"])


@pytest.mark.parametrize(
    ("rules", "decides"),
    [
        ([], "implied"),  # Implied rules
        ([ALLOW], "allow"),
        ([{**ALLOW, "disabled": True}], "implied"),  # Enforcement status
        ([{**ALLOW, "direction": "EGRESS"}], "implied"),  # Direction of traffic
        ([{**ALLOW, "targetTags": ["other"]}], "implied"),  # Targets
        ([{**ALLOW, "targetTags": ["other", "bert-tpu"]}], "allow"),
        ([{**ALLOW, "targetTags": []}], "allow"),
        ([{**ALLOW, "targetServiceAccounts": ["job@lab.iam.gserviceaccount.com"]}], "allow"),
        ([{**ALLOW, "targetServiceAccounts": ["web@lab.iam.gserviceaccount.com"]}], "implied"),
        ([{**ALLOW, "sourceRanges": ["0.0.0.0/0"]}], "allow"),  # Sources
        ([{**ALLOW, "sourceRanges": ["10.0.0.0/8"]}], "implied"),
        ([{**ALLOW, "sourceRanges": ["::/0"]}], "implied"),
        ([{**ALLOW, "allowed": [{"IPProtocol": "tcp", "ports": ["80", "20-30"]}]}], "allow"),
        ([{**ALLOW, "allowed": [{"IPProtocol": "udp", "ports": ["22"]}]}], "implied"),
        ([{**ALLOW, "allowed": [{"IPProtocol": "all"}]}], "allow"),  # Protocols and ports
        ([{**ALLOW, "allowed": [{"IPProtocol": "6"}]}], "allow"),
        ([{**ALLOW, "allowed": [{"IPProtocol": "TCP"}]}], "allow"),
        ([ALLOW, DENY], "deny"),  # Priority: at equal priority, denial wins
        ([DENY, ALLOW], "deny"),
        ([ALLOW, {**DENY, "priority": 1001}], "allow"),
        ([ALLOW, {**DENY, "priority": 999}], "deny"),
        ([{**ALLOW, "priority": 0}, {**DENY, "priority": 1}], "allow"),
        ([ALLOW, {**DENY, "priority": 10, "disabled": True}], "allow"),
        ([ALLOW, {**DENY, "priority": 10, "targetTags": ["other"]}], "allow"),
    ],
)
def test_matching_rule_of_highest_priority_decides(rules: list[Any], decides: str) -> None:
    assert decide(rules, INGRESS, RELAY, 22) == decides


@pytest.mark.parametrize(
    ("rule", "decides"),
    [
        (ONLY_TAGS, "allow"),
        ({**ONLY_TAGS, "sourceTags": ["other"]}, "implied"),
        (ONLY_ACCOUNTS, "allow"),
        ({**ONLY_ACCOUNTS, "sourceServiceAccounts": ["else@lab.iam"]}, "implied"),
        ({"sourceRanges": ["10.164.0.0/20"]}, "allow"),
        ({"sourceRanges": ["192.0.2.0/24"], "sourceTags": ["web"]}, "allow"),  # either matches
        ({"sourceRanges": ["10.164.0.0/20"], "sourceTags": ["other"]}, "allow"),
        ({"sourceRanges": ["192.0.2.0/24"], "sourceTags": ["other"]}, "implied"),
    ],
)
def test_source_ranges_tags_and_accounts_match(rule: dict[str, Any], decides: str) -> None:
    assert decide([{**ALLOW, **rule}], INGRESS, NEIGHBOR, 22) == decides


@pytest.mark.parametrize("rule", [ONLY_TAGS, ONLY_ACCOUNTS])
def test_tags_and_accounts_do_not_match_external_addresses(rule: dict[str, Any]) -> None:
    outside = Peer(IPv4Address("203.0.113.9"))
    assert decide([{**ALLOW, **rule}], INGRESS, outside, 22) == "implied"


@pytest.mark.parametrize(
    ("ranges", "address", "decides"),
    [
        (None, "198.51.100.7", "deny"),  # without destinations: every one
        (["0.0.0.0/0"], "198.51.100.7", "deny"),
        (["198.51.100.0/24"], "198.51.100.7", "deny"),
        (["192.0.2.0/24"], "198.51.100.7", "implied"),
        (["0.0.0.0/0"], None, "deny"),
        (["192.0.2.0/24"], None, "implied"),
    ],
)
def test_egress_rules_match_destinations(
    ranges: list[str] | None, address: str | None, decides: str
) -> None:
    rule = {**DENY, "direction": "EGRESS", "sourceRanges": None, "destinationRanges": ranges}
    peer = Peer(None if address is None else IPv4Address(address))
    assert decide([rule], EGRESS, peer, 22) == decides
    assert decide([rule], EGRESS, peer, 23) == "implied"
