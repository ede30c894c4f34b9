"""`doctor`: the checks of the cloud, and those of this machine that stand beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidStack
from tpuctl.model.diagnosis import CheckState, Diagnosis, Finding, failed

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.role import CustomRole
    from tpuctl.model.stack import Stack

__all__ = ["diagnose", "role_of"]

IMAGE_BYTES = 3 * 2**30  # an image with TensorFlow, and what pip needs meanwhile
MACHINE_BYTES = 2**28  # what machines write, at the least
LOCAL, FILE = "local cloud", "stack file"
PLACEHOLDER = "my-project"


async def diagnose(tpuctl: Tpuctl, report: Callable[[Finding], None]) -> tuple[Diagnosis, bool]:
    """Ask for all that `up` and `run` need; and say whether the stack is up already.

    Nothing is changed, but that the local cloud is started where it is the one to be asked.
    Without a stack file a plain TPU VM is looked for, in the project that `tpuctl` names if any.
    """
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.doctor import Check, ProjectChecks, machine_finding, run_checks
    from tpuctl.model.stack import minimal_stack

    stack, file = _stack_file(tpuctl)
    has_file = file.state is CheckState.OK

    async def check_workstation() -> Finding:
        return machine_finding(stack if has_file else None)

    async def check_local_cloud() -> Finding:
        return _local_cloud(tpuctl, stack if has_file else None)

    async def check_file() -> Finding:
        return file

    checks = [Check("this machine", check_workstation)]
    if tpuctl.cloud_name == "local":
        checks.append(Check(LOCAL, check_local_cloud))
    checks.append(Check(FILE, check_file))
    if stack is None:  # who calls can be told all the same
        placeholder = minimal_stack("any", PLACEHOLDER)
        project_checks = ProjectChecks(
            placeholder, lambda: Cloud(tpuctl.endpoint, ""), has_file=False
        )
        checks += [check for check in project_checks.checks() if check.name == "credentials"]
    else:
        project_checks = ProjectChecks(
            stack, lambda: tpuctl.cloud, has_file=has_file, public_key=lambda: _public_keys(tpuctl)
        )
        checks += project_checks.checks()
    return await run_checks(checks, report), project_checks.is_up


def role_of(tpuctl: Tpuctl) -> CustomRole:
    """The custom role for whoever brings the stack up and takes it down. Asks no cloud."""
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import GOOGLE
    from tpuctl.flows.role import custom_role

    tpuctl.stack.require_valid()
    return custom_role(tpuctl.stack, Cloud(GOOGLE, tpuctl.stack.project))


def _stack_file(tpuctl: Tpuctl) -> tuple[Stack | None, Finding]:
    """The stack to ask about, if there is one, and what is to be said of its file."""
    path = tpuctl.stack_file
    if tpuctl.bare is not None:
        detail = f"left out: a plain TPU VM in {tpuctl.project} is looked into"
        return tpuctl.stack, Finding(FILE, CheckState.UNASKED, detail, "Write one\n    tpuctl init")
    if not path.exists():
        hint = "Write one\n    tpuctl init\nor look at a project alone\n"
        hint += "    tpuctl doctor --project PROJECT"
        return None, Finding(FILE, CheckState.PROBLEM, f"there is no {path}", hint, exit_code=2)
    try:
        stack = tpuctl.stack
        stack.require_valid()
    except InvalidStack as error:
        finding = failed(FILE, error)
        hint = f"{finding.hint}\nAll that is wrong with it:\n    tpuctl check".strip()
        return None, Finding(FILE, CheckState.PROBLEM, finding.told, hint, error.exit_code)
    tpu = stack.file.tpu
    nodes = f"{len(stack.nodes)} x " if len(stack.nodes) > 1 else ""
    where = f"{', '.join(stack.zones)}, {tpu.capacity}"
    return stack, Finding(FILE, CheckState.OK, f"{stack.name}: {nodes}{tpu.type} in {where}")


def _public_keys(tpuctl: Tpuctl) -> str:
    """As `up` would give them to machines; nothing where the key is still to be made."""
    return tpuctl.keys.public_lines() if tpuctl.keys.exists else ""


def _local_cloud(tpuctl: Tpuctl, stack: Stack | None) -> Finding:
    """It runs, keeps machines apart, and has room and an image for those of the stack."""
    import shutil

    from tpuctl.emulator.client import server_process
    from tpuctl.emulator.machines.images import ImageStore, NoImage

    endpoint = tpuctl.endpoint  # which starts it
    running = server_process.status(server_process.default_home())
    isolation = server_process.report(running)["isolation"] if running is not None else ""
    facts = [f"runs at {endpoint.url}"]
    tensorflow = stack.runtime.tensorflow if stack is not None else None
    images = ImageStore()
    try:
        choice = images.choose(tensorflow)
    except NoImage as error:
        return Finding(LOCAL, CheckState.PROBLEM, str(error), error.hint, exit_code=1)
    if choice.note:
        facts.append(f"machines have {choice.note.removesuffix('.')}")
    is_made = stack is None or images.is_cached(choice.tensorflow)
    folder = next(parent for parent in (images.cache, *images.cache.parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    needed = MACHINE_BYTES if is_made else IMAGE_BYTES
    if free < needed:
        return Finding(
            LOCAL,
            CheckState.PROBLEM,
            f"{free / 2**30:.1f} GiB are free at {folder}, {needed / 2**30:.1f} are needed",
            "Make room, or keep images elsewhere:\n    export TPUCTL_IMAGE_CACHE=FOLDER",
            exit_code=1,
        )
    if not is_made:
        facts.append("the machines' image is made at the first `up`")
    if isolation.startswith("none") and "no machines" not in isolation:
        return Finding(
            LOCAL,
            CheckState.WARNING,
            f"{'; '.join(facts)}; machines are not kept apart from this computer "
            f"({isolation.partition(': ')[2]}), so that startup scripts are refused",
            "On Linux, user namespaces are allowed with\n"
            "    sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    return Finding(LOCAL, CheckState.OK, "; ".join(facts))
