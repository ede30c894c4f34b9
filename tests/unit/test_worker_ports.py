"""Whether firewall rules let workers reach each other; the semantics are Google's.

cloud.google.com/firewall/docs/firewalls: priority, implied deny, and
cloud.google.com/firewall/docs/firewalls#more_rules_default_vpc: `default-allow-internal`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.model.workers.worker_ports import FirewallRule, closed_ports

SUBNETWORK, TAG = "10.164.0.0/20", "bert-tpu"
REQUIRED = [8470, 8471, 8474, 8476, 8482]
TCP = (("tcp", 0, 65535),)


def rule(priority: int = 1000, *, allows: bool = True, **more: Any) -> FirewallRule:
    return FirewallRule(priority, allows, **{"ports": TCP, **more})


INTERNAL = rule(65534, source_ranges=("10.128.0.0/9",))
# What Google opened in the report: jax-ml/jax#35905.
OPENED = tuple(("tcp", port, port) for port in (8470, 8471, 8474, 8476, 11211))


@pytest.mark.parametrize(
    ("rules", "closed"),
    [
        ([], REQUIRED),
        ([INTERNAL], []),
        ([rule(source_ranges=("10.128.0.0/20",))], REQUIRED),  # another region's subnetwork
        ([rule(source_ranges=("0.0.0.0/0",))], []),
        ([rule(source_ranges=("::/0",))], REQUIRED),
        ([rule(source_tags=(TAG,), target_tags=(TAG,))], []),
        ([rule(source_tags=("other",))], REQUIRED),
        ([rule(target_tags=("other",), source_ranges=("10.0.0.0/8",))], REQUIRED),
        ([rule(ports=OPENED, source_tags=(TAG,))], [8482]),
        ([rule(ports=(("udp", 0, 65535), ("icmp", 0, 65535)))], REQUIRED),
        ([rule(ports=(("all", 0, 65535),))], []),
        ([INTERNAL, rule(1000, allows=False, source_ranges=("10.0.0.0/8",))], REQUIRED),
        ([INTERNAL, rule(65535, allows=False)], []),
        ([rule(500), rule(500, allows=False, ports=(("tcp", 8476, 8476),))], [8476]),
        ([rule(is_restricted=True)], REQUIRED),  # to a service account
    ],
)
def test_closed_ports(rules: list[FirewallRule], closed: list[int]) -> None:
    assert closed_ports(rules, SUBNETWORK, TAG) == closed
