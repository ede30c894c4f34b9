"""The tree shows the architecture: rooms of at most some twenty modules, and flows that are found
by the name of their command."""

from __future__ import annotations

from pathlib import Path

from typer import Context

from tpuctl.cli.app import command_line

MOST = 20
PACKAGE = Path(__file__).parents[2] / "tpuctl"
# Commands whose flow has another name, since it is also another command's.
FLOWS = {
    "ci": "ci/pipelines",
    "doctor": "doctor/__init__",
    "ssh-config": "machines/ssh",
    "stop": "jobs/follow",
    "wait": "jobs/recover",
}
# They read tables of this machine, or show what others are told.
WITHOUT_FLOW = {*("types", "zones", "runtimes", "local", "skill", "mcp", "help")}


def modules_of(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]


def test_folders_have_at_most_twenty_modules_at_one_level() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    flat = {str(each.relative_to(PACKAGE)): len(modules_of(each)) for each in folders}
    too_many = {name: count for name, count in flat.items() if count > MOST}
    assert not too_many, (
        f"more than {MOST} modules at one level: give the folder rooms, with a contract between "
        f"them in pyproject.toml (CONTRIBUTING.md): {too_many}"
    )


def test_flow_of_each_command_is_found_by_its_name() -> None:
    names = {*command_line().list_commands(Context(command_line()))}
    for name in sorted(names - WITHOUT_FLOW):
        module = FLOWS.get(name, f"*/{name.replace('-', '_')}")
        assert [*(PACKAGE / "flows").glob(f"{module}.py")], f"tpuctl {name}: no flows/{module}.py"
    assert not (FLOWS.keys() | WITHOUT_FLOW) - names
