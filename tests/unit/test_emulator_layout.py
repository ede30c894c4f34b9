"""The layout of the emulator's packages."""

from __future__ import annotations

from pathlib import Path

import tpuctl.emulator
from tpuctl.emulator.server import APIS, PACES

FOLDER = Path(tpuctl.emulator.__file__).parent


def test_emulator_has_few_packages() -> None:
    rooms = {path.name for path in FOLDER.iterdir() if not path.name.startswith("__")}
    assert len(rooms) <= 20, sorted(rooms)


def test_each_api_registers_required_parts() -> None:
    assert len(APIS) >= 9
    assert len(PACES) == sum(len(api.paces) for api in APIS), "a step is listed with two paces"
    for api in APIS:
        folder = FOLDER.parents[1] / api.access.package.replace(".", "/")
        assert (folder / "permissions.toml").is_file(), folder
        assert api.access.methods, f"{folder}/api.py names no methods"
        assert api.services, f"{folder}/api.py names no services"
        assert api.documents, f"{folder}/api.py names no discovery documents"
        for kind, key in api.with_machines.items():
            assert key in api.services, f"{folder}/api.py has no service for {kind}"
        for surface in (*api.surfaces, *api.shared_surfaces):
            assert surface.key in api.services, f"{folder}/api.py has no {surface.key}"
            assert api.access.has(f"{surface.service}/"), f"{folder}/api.py: methods of {surface}"
