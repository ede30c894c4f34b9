"""`doctor`: checks of the project, the stack file, the local cloud and this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidStack
from tpuctl.model.troubleshooting.diagnosis import CheckState, Diagnosis, Finding, failed
from tpuctl.units import binary_size

if TYPE_CHECKING:
    from tpuctl.flows.context import OpenStack
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.troubleshooting.role import CustomRole

IMAGE_BYTES = 3 * 2**30  # an image with TensorFlow, and pip's temporary files
MACHINE_BYTES = 2**28  # the least that machines write
LOCAL, FILE = "local cloud", "stack file"
PLACEHOLDER = "my-project"


async def diagnose(opened: OpenStack, report: Callable[[Finding], None]) -> tuple[Diagnosis, bool]:
    """Check everything that `up` and `run` need; also return whether the stack is already up.

    Changes nothing, except that the local cloud is started if it is the one in use. Without a
    stack file, checks for a plain TPU VM in the project that was given, if it has one.
    """
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.doctor.checks import Check, run_checks
    from tpuctl.flows.doctor.project import ProjectChecks
    from tpuctl.flows.doctor.workstation import machine_finding
    from tpuctl.model.stack.stack import minimal_stack

    stack, file = _stack_file(opened)
    has_file = file.state is CheckState.OK

    async def check_workstation() -> Finding:
        return machine_finding(stack if has_file else None)

    async def check_local_cloud() -> Finding:
        return _local_cloud(opened, stack if has_file else None)

    async def check_file() -> Finding:
        return file

    checks = [Check("this machine", check_workstation)]
    if opened.cloud_name == "local":
        checks.append(Check(LOCAL, check_local_cloud))
    checks.append(Check(FILE, check_file))
    if stack is None:  # the caller's identity can be checked without a stack
        placeholder = minimal_stack("any", PLACEHOLDER)
        project_checks = ProjectChecks(
            placeholder,
            lambda: Cloud(opened.endpoint, "", record=opened.record_call),
            has_file=False,
        )
        checks += [check for check in project_checks.checks() if check.name == "credentials"]
    else:
        project_checks = ProjectChecks(
            stack, lambda: opened.cloud, has_file=has_file, public_key=lambda: _public_keys(opened)
        )
        checks += project_checks.checks()
    return await run_checks(checks, report), project_checks.is_up


def role_of(opened: OpenStack) -> CustomRole:
    """The custom role needed to bring the stack up and take it down. Sends no request."""
    from tpuctl.flows.doctor.role import custom_role

    opened.stack.require_valid()
    return custom_role(opened.stack)


def _stack_file(opened: OpenStack) -> tuple[Stack | None, Finding]:
    """The stack to check, if any, and the finding about its file."""
    path = opened.stack_file
    if opened.bare is not None:
        detail = f"not used: checking for a plain TPU VM in {opened.project}"
        hint = "Create one:\n    tpuctl init"
        return opened.stack, Finding(FILE, CheckState.SKIPPED, detail, hint)
    if not path.exists():
        hint = "Create one:\n    tpuctl init\nor check a project only:\n"
        hint += "    tpuctl doctor --project PROJECT"
        return None, Finding(FILE, CheckState.PROBLEM, f"{path} not found", hint, exit_code=2)
    try:
        stack = opened.stack
        stack.require_valid()
    except InvalidStack as error:
        finding = failed(FILE, error)
        hint = f"{finding.hint}\nSee all problems:\n    tpuctl check".strip()
        return None, Finding(FILE, CheckState.PROBLEM, finding.message, hint, error.exit_code)
    if len(stack.alternatives) > 1:
        detail = f"{stack.name}: {', '.join(map(str, stack.candidates))}"
        return stack, Finding(FILE, CheckState.OK, detail)
    tpu = stack.file.tpu
    nodes = f"{len(stack.nodes)} x " if len(stack.nodes) > 1 else ""
    where = f"{', '.join(stack.zones)}, {tpu.capacity}"
    return stack, Finding(FILE, CheckState.OK, f"{stack.name}: {nodes}{tpu.type} in {where}")


def _public_keys(opened: OpenStack) -> str:
    """The public keys that `up` would install; empty while there is no key yet."""
    return opened.keys.public_lines() if opened.keys.exists else ""


def _local_cloud(opened: OpenStack, stack: Stack | None) -> Finding:
    """It runs, isolates machines, and has disk space and an image for the stack's machines."""
    import shutil

    from tpuctl.local_cloud import server_process
    from tpuctl.local_cloud.machine_images import ImageStore, NoImage

    endpoint = opened.endpoint  # starts it
    running = server_process.status(server_process.default_home())
    isolation = server_process.report(running)["isolation"] if running is not None else ""
    facts = [f"running at {endpoint.url}"]
    tensorflow, python = (
        (stack.runtime.tensorflow, stack.runtime.python) if stack is not None else (None, None)
    )
    images = ImageStore()
    try:
        choice = images.choose(tensorflow, python)
    except NoImage as error:
        return Finding(LOCAL, CheckState.PROBLEM, str(error), error.hint, exit_code=1)
    if choice.note:
        facts.append(f"machines have {choice.note.removesuffix('.')}")
    is_made = stack is None or images.is_cached(choice.tensorflow, choice.python)
    folder = next(parent for parent in (images.cache, *images.cache.parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    needed = MACHINE_BYTES if is_made else IMAGE_BYTES
    if free < needed:
        return Finding(
            LOCAL,
            CheckState.PROBLEM,
            f"{binary_size(free)} are free at {folder}, {binary_size(needed)} are needed",
            "Free disk space, or move the image cache:\n    tpuctl local prune\n"
            "    export TPUCTL_IMAGE_CACHE=FOLDER",
            exit_code=1,
        )
    if not is_made:
        facts.append("the first `up` builds the machine image")
    if isolation.startswith("none") and "no machines" not in isolation:
        return Finding(
            LOCAL,
            CheckState.WARNING,
            f"{'; '.join(facts)}; machines are not isolated from this computer "
            f"({isolation.partition(': ')[2]}), so startup scripts are rejected",
            "On Linux, allow user namespaces:\n"
            "    sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    return Finding(LOCAL, CheckState.OK, "; ".join(facts))
