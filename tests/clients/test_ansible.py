"""Ansible: Google's collection, and machines that it logs in to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PLAYBOOK = Path(__file__).with_name("playbook.yml")


@pytest.mark.malformed  # numbers instead of int64 strings; extra fields on buckets
def test_ansible_playbook_runs(shell: Any, google: Any, programs: Callable[[str], Path]) -> None:
    key, output_file = shell.home / "key", shell.home / "seen.json"
    shell.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
    values = {"project": shell.project, "zone": US_ZONE, "key": key, "seen": output_file}
    shell.run(
        *(programs("ansible") / "ansible-playbook", "-i", "localhost,", PLAYBOOK),
        *(word for name, value in values.items() for word in ("-e", f"{name}={value}")),
        seconds=600,
        PATH=f"{programs('ansible')}:{shell.variables['PATH']}",
        ANSIBLE_HOST_KEY_CHECKING="false",
    )
    assert json.loads(output_file.read_text("utf-8")) == ["ansible", "root", "0750", "ansible"]
    assert google.remains() == []
