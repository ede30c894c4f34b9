"""Firewall rules through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

RULES = ("compute", "firewall-rules")


def test_rule_is_created_and_updated(gcloud: Gcloud) -> None:
    web = ("--target-tags=web", "--source-ranges=10.0.0.0/8", "--description=for the web")
    [rule] = gcloud.json(*RULES, "create", "web", "--allow=tcp:80,tcp:443,icmp", *web)
    assert rule["allowed"] == [
        {"IPProtocol": "tcp", "ports": ["80"]},
        {"IPProtocol": "tcp", "ports": ["443"]},
        {"IPProtocol": "icmp"},
    ]
    gcloud.run(*RULES, "update", "web", "--allow=tcp:8080", "--priority=900", "--disabled")
    table = [line.split() for line in gcloud.run(*RULES, "list").stdout.splitlines()]
    header = ["NAME", "NETWORK", "DIRECTION", "PRIORITY", "ALLOW", "DENY", "DISABLED"]
    assert table[0] == header
    assert ["web", "default", "INGRESS", "900", "tcp:8080", "True"] in table
    assert ["default-allow-ssh", "default", "INGRESS", "65534", "tcp:22", "False"] in table


@pytest.mark.soak
def test_rule_commands(gcloud: Gcloud) -> None:
    web = (*RULES, "create", "web", "--allow=tcp:80")
    gcloud.run(*web)
    assert "already exists" in gcloud.run(*web, check=False).stderr
    assert gcloud.json(*RULES, "describe", "web")["sourceRanges"] == ["0.0.0.0/0"]
    out = ("--direction=EGRESS", "--action=DENY", "--rules=all", "--destination-ranges=10.1.0.0/16")
    [deny] = gcloud.json(*RULES, "create", "deny", *out)
    assert deny["denied"] == [{"IPProtocol": "all"}]
    for option in ("--allow=tcp:99999", "--allow=tcp:90-80", "--allow=icmp:80"):
        failed = gcloud.run(*RULES, "create", "invalid", option, check=False)
        assert "Invalid value for field 'resource.allowed[0].ports" in failed.stderr
    absent = gcloud.run(*RULES, "create", "no", "--allow=tcp:80", "--network=none", check=False)
    assert f"'projects/{gcloud.project}/global/networks/none' was not found" in absent.stderr
    effective = gcloud.json("compute", "networks", "get-effective-firewalls", "default")
    assert {"web", "deny", "default-allow-ssh"} <= {rule["name"] for rule in effective["firewalls"]}
    [egress] = gcloud.json(*RULES, "list", "--filter=direction=EGRESS")
    assert egress["name"] == "deny"
    gcloud.run(*RULES, "delete", "web", "deny")
    assert len(gcloud.json(*RULES, "list")) == 4
    assert "was not found" in gcloud.run(*RULES, "delete", "web", check=False).stderr
