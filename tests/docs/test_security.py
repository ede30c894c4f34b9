"""Files and tests named on the security page exist, and its facts match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpuctl.remote.iap import RELAY_RANGE
from tpuctl.resources.network.ssh_deny_rule import PRIORITY

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests|tpuctl|requirements)/[\w./-]+(?:::\w+)?)`", PAGE)))


def test_security_page_names_its_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize("name", NAMED)
def test_named_tests_exist(name: str) -> None:
    path, _, test = name.partition("::")
    target = ROOT / path
    assert target.exists()
    if test:
        assert re.search(rf"^(?:async )?def {test}\(", target.read_text("utf-8"), re.MULTILINE)


def test_security_facts_match_program() -> None:
    assert RELAY_RANGE in PAGE
    assert PRIORITY < 65534, "before the rule of the `default` network"
    assert PRIORITY > 1000, "after users' rules, which usually have priority 1000"
