"""Metadata of a stack's machines: SSH keys, startup script, watchdog settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tpuctl.assets import program
from tpuctl.model.cost.cost import affordable_seconds
from tpuctl.model.cost.stack_cost import cost_of, hourly_rates
from tpuctl.model.stack.notification_settings import notification_settings
from tpuctl.model.stack.proxy import network_settings
from tpuctl.model.stack.spending import CONTROLLER, NOTHING_SPENT, TPU, Spent
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.duration import seconds_of
from tpuctl.model.text.names import BUDGET_LEDGER, STACK_LABEL
from tpuctl.model.text.ssh_key_lines import ssh_keys_with
from tpuctl.units import dollars

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TPU_API = "https://tpu.googleapis.com"
COMPUTE = "https://compute.googleapis.com/compute/v1"
STARTUP, USERS_STARTUP, ORDERS = "startup-script", "tpuctl-startup-script", "tpuctl-watchdog"
BELL = "tpuctl-bell"
MIN_SECONDS = 0.1
LEFT = "tpuctl-left"  # of the limits when the machine was created, and by whom
# What the watchdog sends notifications with: machines have nothing else before `up` connects.
BELL_PROGRAMS = (
    *("bell.py", "notices.py", "outbox.py", "secret_fetch.py"),
    *("storage.py", "folder.py", "clock.py", "forked.py", "network_variables.py"),
)
NETWORK = "network.json"  # beside them, what `use_network` reads


def prerequisites(stack: Stack) -> set[str]:
    """What must exist before any machine: its account, the permission to delete it at its limits,
    and its way to the internet.

    So a machine is never charged without a watchdog that may delete it.
    """
    needed = {f"account/{stack.names.service_account}"} if stack.creates_service_account else set()
    if stack.file.network.nat:
        needed.add(f"nat/{stack.names.nat}")
    if stack.budget is not None:
        needed.add(f"budget-grants/{stack.names.budget_bucket}")
    return needed | ({f"project-grants/{stack.project}"} if stack.has_limits else set())


def metadata_of(stack: Stack, key_line: str, *, startup: bool = True) -> dict[str, str]:
    """The metadata of a worker of a TPU VM, or of the controller of a TPU node.

    `startup`: whether machines run startup scripts; otherwise the watchdog is started over SSH.
    """
    metadata = {**stack.file.tpu.metadata, "enable-guest-attributes": "TRUE"}
    metadata["ssh-keys"] = ssh_keys_with(metadata.get("ssh-keys", ""), key_line)
    if stack.file.tpu.startup_script is not None:
        script = stack.folder / stack.file.tpu.startup_script
        metadata[STARTUP] = script.read_text("utf-8")
    watch = watch_metadata(stack, on_controller=stack.is_node, startup=startup)
    if STARTUP in watch and STARTUP in metadata:  # the watchdog starts it
        metadata[USERS_STARTUP] = metadata[STARTUP]
    return {**metadata, **watch}


def watch_metadata(stack: Stack, *, on_controller: bool, startup: bool = True) -> dict[str, str]:
    """The watchdog's metadata: limits to enforce and, on a controller, job recovery.

    Empty settings, which stop a running watchdog, if there is nothing to do.
    """
    has_bell = stack.file.notify is not None
    is_needed = stack.has_limits or has_bell or (on_controller and stack.has_recovery)
    orders = _orders(stack, on_controller=on_controller) if is_needed else {}
    metadata = {ORDERS: json.dumps(orders, sort_keys=True)}
    if has_bell:
        files = {name: program(name) for name in BELL_PROGRAMS}
        files[NETWORK] = json.dumps(network_settings(stack.file, stack.folder))
        metadata[BELL] = json.dumps(files)
    if stack.counts_spending:
        metadata[LEFT] = json.dumps({**_age(stack, stack.spent), "user": stack.user})
    return {**metadata, STARTUP: program("watchdog.py")} if startup and orders else metadata


def metadata_differs(observed: Mapping[str, str], desired: Mapping[str, str]) -> tuple[str, ...]:
    """What an update must change: `ssh-keys`, `limits`, `metadata`. Other keys and values are
    kept."""
    fields = []
    keys = {*desired.get("ssh-keys", "").splitlines()}
    if not keys <= {*observed.get("ssh-keys", "").splitlines()}:
        fields.append("ssh-keys")
    current = {ORDERS: "{}", **observed}
    stale = {name for name, value in desired.items() if current.get(name) != value} - {"ssh-keys"}
    if ORDERS in stale:
        fields.append("limits")
    if stale - {ORDERS, LEFT}:
        fields.append("metadata")
    return tuple(fields)


def _orders(stack: Stack, *, on_controller: bool) -> dict[str, Any]:
    """The watchdog's settings; `jobs/shipped/watchdog/watchdog.py` reads these keys.

    Independent of the time of writing, so that the same stack has the same metadata.
    """
    zone = f"{COMPUTE}/projects/{stack.project}/zones/{stack.zone}"
    beside = f"{COMPUTE}/projects/{stack.project}/zones/{stack.zone_of_controller}"
    controller = f"{beside}/instances/{stack.names.controller}"
    nodes, peers = _instances(stack, zone) if stack.is_compute else _nodes(stack)
    remove = list(nodes)
    if stack.queue is not None:
        version = "v2alpha1" if stack.file.tpu.capacity == "flex-start" else "v2"
        name = f"{_location(stack)}/queuedResources/{stack.names.queued}"
        remove = [f"{TPU_API}/{version}/{name}?force=true"]
    if stack.controller is not None:
        remove = [*remove, controller] if on_controller else [controller, *remove]
        if not stack.is_compute:  # otherwise among the instances
            peers.append(f"{controller}/getGuestAttributes?queryPath=tpuctl/")
    is_alone = stack.worker_count == 1 and (stack.is_node or stack.controller is None)
    is_instance = stack.is_compute and not on_controller  # whose name its group chose
    idle = stack.file.limits.idle
    return {
        **_age(stack, NOTHING_SPENT),
        "idle_seconds": seconds_of(idle) if idle is not None else None,
        "tpu": f"{zone}/instances/{{instance}}" if is_instance else nodes[0],
        "peers": [] if is_alone else peers,
        "delete": remove,
        # TensorFlow's runtime for slices always holds the chips of its worker.
        "count_chip_use": "-pod" not in stack.runtime.version,
        **_notify(stack, is_instance=is_instance, on_controller=on_controller),
        **_spending(
            stack, nodes[0], controller, is_instance=is_instance, on_controller=on_controller
        ),
    }


def _notify(stack: Stack, *, is_instance: bool, on_controller: bool) -> dict[str, Any]:
    settings = notification_settings(stack, cost_of(stack).per_hour)
    if settings is None:
        return {}
    more = {
        "bucket": stack.bucket,
        "type": stack.counted_type,
        # All machines send what is unsent; one reports the creation and limits of the TPU.
        "is_reporter": on_controller == stack.is_node,
        "instance": stack.nodes[0] if is_instance else "",
    }
    return {"notify": {**settings, **more}}


def _spending(
    stack: Stack, node: str, controller: str, *, is_instance: bool, on_controller: bool
) -> dict[str, Any]:
    """What the first worker, or the controller, adds to the ledger, and the limits of its sum."""
    if not stack.counts_spending:
        return {}
    urls = {TPU: node} if on_controller == stack.is_node else {}
    if on_controller:
        urls[CONTROLLER] = controller
    zones = {TPU: stack.zone, CONTROLLER: stack.zone_of_controller}
    rates = hourly_rates(stack)
    return {
        "spending": {
            "instance": stack.nodes[0] if is_instance else "",
            "ledgers": _ledgers(stack),
            "items": [
                {
                    "stack": stack.name,
                    "zone": zones[item],
                    "item": item,
                    "url": url,
                    "is_remote": item == TPU and on_controller,
                    "per_hour": rates.get(item, 0.0),
                }
                for item, url in urls.items()
            ],
        }
    }


def _ledgers(stack: Stack) -> list[dict[str, Any]]:
    """Where machines report what they spend, and the limits of the sums."""
    limits, since = stack.file.limits, stack.spent.since
    ledgers: list[dict[str, Any]] = []
    if stack.has_life_limits:
        ledgers.append(
            {
                "bucket": stack.bucket,
                "object": stack.names.ledger,
                "since": since and since.isoformat(),  # a change updates the machines' metadata
                "max_cost": limits.max_cost,
                "max_hours": limits.max_hours,
            }
        )
    if stack.budget is not None:
        bucket = {"bucket": stack.names.budget_bucket, "object": BUDGET_LEDGER}
        ledgers.append({**bucket, "budget": stack.budget})
    return ledgers


def _location(stack: Stack) -> str:
    return f"projects/{stack.project}/locations/{stack.zone}"


def _nodes(stack: Stack) -> tuple[list[str], list[str]]:
    """The URLs of the nodes, and of the guest attributes of their workers."""
    api = "v1" if stack.is_node else "v2"
    nodes = [f"{TPU_API}/{api}/{_location(stack)}/nodes/{name}" for name in stack.nodes]
    return nodes, [] if stack.is_node else [f"{node}:getGuestAttributes" for node in nodes]


def _instances(stack: Stack, zone: str) -> tuple[list[str], list[str]]:
    """The URLs of the slices that Compute Engine sells, and of the list of all machines."""
    kind = "instances" if stack.machine.hosts == 1 else "instanceGroupManagers"
    nodes = [f"{zone}/{kind}/{name}" for name in stack.nodes]
    return nodes, [f"{zone}/instances?filter=labels.{STACK_LABEL}%3D{stack.name}"]


def _age(stack: Stack, spent: Spent) -> dict[str, Any]:
    """What is left of the time and cost limits, as a maximum age: whichever comes first."""
    limits, hourly = stack.file.limits, cost_of(stack).per_hour
    ages: list[tuple[float, str]] = []
    if limits.max_hours is not None:
        hours = max(0.0, limits.max_hours - spent.hours)
        reason = f"it is {hours:g} hours old{_before(spent.hours, f'{spent.hours:.2g} hours')}"
        ages.append((hours * 3600, f"{reason} (limits.max_hours)"))
    if limits.max_cost is not None and hourly:
        cost = max(0.0, limits.max_cost - spent.cost)
        reason = f"it has cost {dollars(cost)} at {dollars(hourly)} an hour"
        reason += _before(spent.cost, dollars(spent.cost))
        ages.append((affordable_seconds(cost, hourly), f"{reason} (limits.max_cost)"))
    if stack.budget is not None and hourly:
        cost = max(0.0, stack.budget - spent.month)
        reason = f"it has cost the {dollars(cost)} that were left of {limits.budget}"
        ages.append((affordable_seconds(cost, hourly), f"{reason} (limits.budget)"))
    seconds, reason = min(ages, default=(None, ""))
    if seconds is not None:
        seconds = max(MIN_SECONDS, seconds)  # the watchdog takes 0 for no limit
    return {"max_seconds": seconds, "reason": reason}


def _before(spent: float, text: str) -> str:
    return f", after {text} of earlier machines" if spent else ""
