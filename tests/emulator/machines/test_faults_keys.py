"""ssh-key-refused faults of a real machine's SSH server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tpuctl.emulator.faults.fault import Faults
from tpuctl.emulator.state.store import Store


async def test_key_is_refused_given_number_of_times(lab: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "faults.sqlite")
    faults = Faults(store)
    lab.host.refuses_key = lambda name: faults.take("ssh-key-refused", node=name) is not None
    await lab.boot()
    other = faults.add({"kind": "ssh-key-refused", "node": "another-node"})
    fault = faults.add({"kind": "ssh-key-refused", "node": "bert", "times": 2})
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        async with lab.connect(key=stranger):
            pass
    assert fault.fields["applied"] == 0, "an unauthorized key does not count"
    for count in (1, 2):
        with pytest.raises(asyncssh.PermissionDenied):
            async with lab.connect():
                pass
        assert fault.fields["applied"] == count
    assert (await lab.run("echo in")).out == "in\n"
    assert (fault.fields["applied"], other.fields["applied"]) == (2, 0)
    store.close()
