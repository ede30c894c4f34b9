"""Validates a stack file against the catalog, before any API call.

The schema validates each key; these rules check combinations, and what exists.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tpuctl.catalog import (
    API_NAMES,
    AcceleratorType,
    Api,
    accelerator_type,
    accelerator_types,
    announced_tpu,
    apis_of,
    flex_start_zones,
    nearest_types,
    node_cidr_prefix,
    node_price,
    node_version,
    node_versions,
    region_of,
    runtime,
    runtime_for,
    runtimes,
    topologies_of,
    tpu_machine,
    tpu_machine_type,
    traffic_price,
    unlisted_runtime,
    zones,
    zones_of,
)
from tpuctl.errors import Diagnostic
from tpuctl.files import is_file
from tpuctl.model.stack.candidates import (
    all_candidates,
    alternatives_of,
    candidates_of,
    sellers_of,
    with_tpu,
)
from tpuctl.model.stack.encryption import encryption_problems
from tpuctl.model.stack.machine_rules import machine_problems, network_problems
from tpuctl.model.stack.network_reference import reference_problems
from tpuctl.model.stack.proxy import proxy_problems
from tpuctl.model.stack.schema import StackFile
from tpuctl.model.stack.stack_text import StackText
from tpuctl.model.text.duration import DURATION, seconds_of
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.spelling import nearest
from tpuctl.units import counted

MAX_RUN_SECONDS = 7 * 86400.0  # documented limit of flex-start
# How long a flex-start machine of Compute Engine may wait: `requestValidForDuration`
# (compute/docs/instances/create-flex-start-vm).
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 90, 7200
NODE_GENERATIONS = ("v2", "v3")  # later generations have no TPU nodes
# docs.cloud.google.com/tpu/docs/multislice-introduction; AI-Hypercomputer/maxtext#158
SINGLE_SLICE_GENERATIONS = ("v2", "v3")


def find_problems(file: StackFile, text: StackText) -> list[Diagnostic]:
    """Problems that prevent creating the stack with one of its alternatives."""
    if not file.tpu.any_of:
        return list(_find_problems(file, text))
    alternatives = alternatives_of(file)
    regions = (
        region_of(candidate.zone)
        for candidate in all_candidates(file)
        if accelerator_type(alternatives[candidate.alternative].type) is not None
    )
    region = next(regions, "")
    problems = [
        list(_find_problems(with_tpu(file, tpu), _text_of(text, index), region))
        for index, tpu in enumerate(alternatives)
    ]
    common = [each for each in problems[0] if all(each in others for others in problems)]
    of_one = [
        replace(each, detail=f"tpu.any_of.{index}: {each.detail}")
        for index, problems_there in enumerate(problems)
        for each in problems_there
        if each not in common
    ]
    return [*common, *of_one, *_problems_together(file, text)]


def _text_of(text: StackText, index: int) -> StackText:
    """The stack file's text, in which the lines of an alternative are those of `tpu`."""
    prefix = f"tpu.any_of.{index}"
    lines = {
        dotted.replace(prefix, "tpu", 1): line
        for dotted, line in text.lines.items()
        if dotted == prefix or dotted.startswith(f"{prefix}.")
    }
    return replace(text, lines={**text.lines, **lines})


def _problems_together(file: StackFile, text: StackText) -> Iterator[Diagnostic]:
    if file.tpu.kind == "node":
        yield Diagnostic(
            "Not for TPU nodes",
            "tpu.any_of is only for TPU VMs",
            "Remove it, or use\n    kind: vm",
            text.where("tpu.any_of"),
        )
    yield from _resume_problems(file, text)
    first: dict[str, int] = {}
    for candidate in all_candidates(file):
        index = first.setdefault(candidate.key, candidate.alternative)
        if index != candidate.alternative:
            yield Diagnostic(
                "Duplicate alternative",
                f"tpu.any_of.{candidate.alternative} and tpu.any_of.{index} are both {candidate}",
                "Remove one of them.",
                text.where(f"tpu.any_of.{candidate.alternative}"),
            )


def _find_problems(file: StackFile, text: StackText, region: str = "") -> Iterator[Diagnostic]:
    """Problems that prevent creating the stack, according to the catalog.

    An existing stack can still be inspected and deleted. `region` is that of an `auto` bucket, by
    default the region of the first zone.
    """
    accelerator = accelerator_type(file.tpu.type)
    if accelerator is None:
        yield _type_problem(file.tpu.type, text.where("tpu.type"))
        return
    if file.tpu.api in ("tpu", "compute") and file.tpu.api not in apis_of(accelerator):
        yield _api_problem(file, accelerator, text)
        return
    yield from _zone_problems(file, accelerator, text, region)
    yield from _option_problems(file, accelerator, text)
    apis = sellers_of(file, accelerator)
    if "compute" in apis:
        yield from _compute_problems(file, accelerator, text)
    if file.tpu.kind == "node":
        return
    if "tpu" not in apis:
        pass  # the image is the runtime
    elif file.tpu.runtime != "auto":
        yield from _runtime_problems(file.tpu.runtime, accelerator, text)
    elif runtime_for(accelerator) is None:
        yield Diagnostic(
            "No runtime for TPU type",
            f"no runtime is known for {accelerator.name}",
            "Set tpu.runtime.",
            text.where("tpu.type"),
        )
    if not isinstance(file.job.workers, str):
        nodes = _nodes(file)
        count, of = nodes * accelerator.workers, f"{nodes} x " if nodes > 1 else ""
        for worker in file.job.workers:
            if not 0 <= worker < count:
                yield Diagnostic(
                    "No such worker",
                    f"{of}{accelerator.name} has workers 0 to {count - 1}, not {worker}",
                    "Remove job.workers to use the default.",
                    text.where("job.workers"),
                )


def _resume_problems(file: StackFile, text: StackText) -> Iterator[Diagnostic]:
    """Alternatives on which a job could not be restarted with `resume: any`."""
    if file.job.resume != "any":
        return
    workers = [
        (tpu.slices, accelerator.workers * _nodes(with_tpu(file, tpu)))
        for tpu in alternatives_of(file)
        if (accelerator := accelerator_type(tpu.type)) is not None
    ]
    if len({*workers}) > 1:
        counts = ", ".join(
            f"{counted(count, 'worker')} in {counted(slices, 'slice')}" for slices, count in workers
        )
        yield Diagnostic(
            "Alternatives of different sizes",
            "job.resume: any needs alternatives with equally many workers and slices; they have "
            f"{counts}",
            "Use\n    job: {resume: same}",
            text.where("job.resume"),
        )


def _nodes(file: StackFile) -> int:
    """The number of nodes: slices, or independent nodes of a queued resource."""
    independent = file.tpu.queue.nodes if file.tpu.queue is not None else 1
    return max(independent, file.tpu.slices)


def _type_problem(name: str, where: str) -> Diagnostic:
    """Why there is no accelerator type of this name."""
    machine = tpu_machine_type(name)
    if machine is not None:
        types = [
            accelerator.name
            for accelerator in accelerator_types().values()
            if (slice_machine := tpu_machine(accelerator)) is not None
            and slice_machine.machine_type == name
        ]
        larger = ", or a larger type for several machines" if len(types) > 1 else ""
        return Diagnostic(
            "Machine type instead of TPU type",
            f"{name} is the machine type that Compute Engine sells {types[0]} as",
            f"Use\n    tpu: {{type: {types[0]}, api: compute}}{larger}",
            where,
        )
    announced = announced_tpu(name)
    if announced is not None:
        return Diagnostic(
            "TPU type not sold yet",
            str(announced),
            "To list the types that are offered:\n    tpuctl types",
            where,
        )
    like = nearest_types(name)
    return Diagnostic(
        "Unknown TPU type",
        f"TPU type {name} does not exist",
        (f"Did you mean {', '.join(like)}?\n" if like else "")
        + "To list all types:\n    tpuctl types",
        where,
    )


def _compute_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    """What Compute Engine, the only seller or the second, cannot do."""
    tpu, machine = file.tpu, tpu_machine(accelerator)
    is_only = sellers_of(file, accelerator) == ("compute",)
    is_chosen = file.tpu.api is not None and len(apis_of(accelerator)) > 1
    use_tpu = "use\n    tpu: {api: tpu}" if is_chosen else ""
    assert machine is not None, "Compute Engine sells the type"

    def problem(summary: str, detail: str, remedy: str, key: str) -> Diagnostic:
        return Diagnostic(
            summary, detail, f"{remedy}, or {use_tpu}" if use_tpu else f"{remedy}.", text.where(key)
        )

    not_there = "Not for TPUs of Compute Engine"
    if tpu.data_disks:
        yield problem(
            not_there,
            "tpu.data_disks are only for TPUs of the Cloud TPU API",
            "Remove them and set tpu.boot_disk.size_gb",
            "tpu.data_disks",
        )
    if is_only and tpu.runtime != "auto":
        yield problem(
            not_there,
            f"tpu.runtime is only for the Cloud TPU API; the machines boot {machine.image}",
            "Remove it",
            "tpu.runtime",
        )
    disks = machine.boot_disks
    if tpu.boot_disk.type not in ("auto", *disks):
        yield problem(
            "Boot disk incompatible with machine type",
            f"{machine.machine_type} does not support {tpu.boot_disk.type}",
            f"Use {' or '.join(disks)}",
            "tpu.boot_disk.type",
        )
    if tpu.capacity == "reserved" and tpu.reservation is None and is_only:
        yield problem(
            "No reservation",
            "Compute Engine uses reserved capacity by the name of its reservation",
            "Set tpu.reservation",
            "tpu.capacity",
        )
    if tpu.queue is None:
        return
    if is_only and tpu.capacity != "flex-start":
        yield problem(
            not_there,
            "Compute Engine has no queue: only flex-start waits for capacity",
            "Remove tpu.queue",
            "tpu.queue",
        )
        return
    remedies = {"nodes": "Remove it"} if tpu.queue.nodes > 1 else {}
    if is_only:
        remedies |= dict.fromkeys(("guaranteed", "provisioning_timeout"), "Remove it")
        remedies["reservation"] = "Use tpu.reservation"
    for key in sorted(remedies.keys() & tpu.queue.model_fields_set):
        yield problem(
            not_there,
            f"tpu.queue.{key} is only for queued resources of the Cloud TPU API",
            remedies[key],
            f"tpu.queue.{key}",
        )
    until = tpu.queue.valid_until
    is_duration = until is not None and re.fullmatch(DURATION, until) is not None
    if (
        machine.hosts == 1
        and tpu.capacity == "flex-start"
        and until is not None
        and is_duration
        and not MIN_WAIT_SECONDS <= seconds_of(until) <= MAX_WAIT_SECONDS
    ):
        yield problem(
            "Waiting time out of range",
            f"a machine of Compute Engine waits between 90s and 2h for capacity, not {until}",
            "Set another valid_until",
            "tpu.queue.valid_until",
        )


def _slice_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    """Invalid combinations with several slices.

    All slices of a stack are in one zone and one network, so they can always reach each other.
    """
    tpu = file.tpu
    if tpu.slices == 1:
        return
    if tpu.kind == "node":
        yield Diagnostic(
            "Not for TPU nodes",
            "tpu.slices is only for TPU VMs",
            "Remove it, or use\n    kind: vm",
            text.where("tpu.slices"),
        )
    elif accelerator.generation in SINGLE_SLICE_GENERATIONS:
        yield Diagnostic(
            "No slices of this generation",
            f"several slices can train together from v4 on, and {accelerator.name} is "
            f"{accelerator.generation}",
            "Choose a newer type, or for independent nodes\n    tpu: {queue: {nodes: N}}",
            text.where("tpu.slices"),
        )
    if tpu.queue is not None and tpu.queue.nodes > 1:
        yield Diagnostic(
            "Slices and independent nodes",
            "tpu.slices run each job together, tpu.queue.nodes run it independently",
            "Remove one of them.",
            text.where("tpu.queue.nodes"),
        )


def _zone_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText, region: str
) -> Iterator[Diagnostic]:
    is_invalid = False
    apis = sellers_of(file, accelerator)
    api = apis[0] if len(apis) == 1 else None
    offering = zones_of(accelerator, api) or accelerator.zones
    for index, zone in enumerate(file.tpu.zones):
        if zone not in offering:
            is_invalid = True
            is_known = zone in zones()
            problem = f"{accelerator.name} is not offered" if is_known else "unknown zone"
            where = "" if len(apis_of(accelerator)) == 1 or api is None else f" at {API_NAMES[api]}"
            yield Diagnostic(
                "TPU type not offered in zone",
                f"{zone}: {problem}{where if is_known else ''}",
                f"Zones with {accelerator.name}: {', '.join(offering)}.",
                text.where(f"tpu.zones.{index}"),
            )
    if is_invalid:
        return
    location = file.bucket.location.lower()
    resolved = tuple(dict.fromkeys(place.zone for place in candidates_of(file, accelerator)))
    region = (region or region_of(resolved[0])) if location == "auto" else location
    created_in = region if file.bucket.name == "auto" else ""
    yield from encryption_problems(file, resolved, created_in, text.where)
    if file.bucket.allow_egress:
        return
    for index, zone in enumerate(resolved):
        if region_of(zone) != region:
            key = f"tpu.zones.{index}" if location == "auto" else "bucket.location"
            yield Diagnostic(
                "Bucket outside the TPU's region",
                f"zone {zone} is in {region_of(zone)}, the bucket is in {region}"
                f"{egress_note(region, region_of(zone))}",
                "Choose zones in one region, or accept charges for traffic:\n"
                "    bucket: {allow_egress: true}",
                text.where(key),
            )
            return


def _api_problem(file: StackFile, accelerator: AcceleratorType, text: StackText) -> Diagnostic:
    api: Api = "tpu" if file.tpu.api == "tpu" else "compute"
    offering = apis_of(accelerator)
    return Diagnostic(
        "TPU type not offered by this API",
        f"{API_NAMES[api]} does not offer {accelerator.name}",
        f"Use\n    tpu: {{api: {offering[0]}}}"
        if offering
        else "Google Kubernetes Engine may offer it.",
        text.where("tpu.api"),
    )


def _runtime_problems(
    name: str, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    fitting = [candidate.version for candidate in runtimes() if candidate.fits(accelerator)]
    match = runtime(name) or unlisted_runtime(name)
    if match is None:
        yield Diagnostic(
            "Invalid runtime",
            f"{name} is not a name of a runtime: use lowercase letters, digits, dots and hyphens",
            f"Use auto, which is {fitting[0]}." if fitting else "",
            text.where("tpu.runtime"),
        )
    elif not match.fits(accelerator):
        yield Diagnostic(
            "Runtime incompatible with TPU type",
            f"{name} does not support {accelerator.name}",
            f"Use auto, which is {fitting[0]}." if fitting else "",
            text.where("tpu.runtime"),
        )


def _option_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    """Invalid combinations of keys."""
    if file.tpu.kind == "node":
        yield from _node_problems(file, accelerator, text)
    else:
        yield from _vm_problems(file, accelerator, text)
    yield from _slice_problems(file, accelerator, text)
    yield from _capacity_problems(file, accelerator, text)
    yield from _disk_problems(file, accelerator, text)
    yield from machine_problems(file, accelerator, text.where)
    yield from network_problems(file, text.where)
    yield from proxy_problems(file, text.folder, text.where)
    zones = dict.fromkeys(candidate.zone for candidate in candidates_of(file, accelerator))
    yield from reference_problems(file, zones, text.where)
    if "compute" not in sellers_of(file, accelerator) and "boot_disk" in file.tpu.model_fields_set:
        yield Diagnostic(
            "Only for TPUs of Compute Engine",
            "tpu.boot_disk is for machines of Compute Engine; the Cloud TPU API decides the size "
            "of boot disks",
            "Remove it, or use tpu.data_disks.",
            text.where("tpu.boot_disk"),
        )
    for name in sorted(file.job.env.keys() & file.job.secrets.keys()):
        yield Diagnostic(
            "Duplicate variable",
            f"{name} is in both job.env and job.secrets",
            "Keep one of them.",
            text.where(f"job.secrets.{name}"),
        )
    if file.project.parent is not None and not file.project.create:
        yield Diagnostic(
            "Parent of an existing project",
            "project.parent applies only to new projects",
            "Create one:\n    project: {create: true}\nor remove project.parent.",
            text.where("project.parent"),
        )
    if STACK_LABEL in file.labels:
        yield Diagnostic(
            "Reserved label",
            f"{STACK_LABEL} is reserved for finding a stack's resources",
            "Choose another key.",
            text.where(f"labels.{STACK_LABEL}"),
        )
    for name in ("max_cost", "budget"):
        if getattr(file.limits, name) is not None and not _priced(file, accelerator):
            yield Diagnostic(
                "Unknown price",
                f"limits.{name} needs a price, but none is published for {accelerator.name} there",
                "Use limits.max_hours.",
                text.where(f"limits.{name}"),
            )
    script = file.tpu.startup_script
    if script is not None and not is_file(text.folder / script):
        yield Diagnostic(
            "No such file",
            f"tpu.startup_script: {text.folder / script} does not exist",
            "Paths are relative to the stack file.",
            text.where("tpu.startup_script"),
        )


def egress_note(source: str, target: str) -> str:
    """The cost of reading a bucket in `source` from a node in `target`, to append to a message.

    For example `: reading from it costs $0.05 per GB (prices of mid-2026)`.
    """
    rate = traffic_price(source, target)
    if rate is None:
        return ": reading from it is charged, at an unpublished price"
    if not rate.amount:
        return ": reading from it is free, but writing to other locations is charged"
    return f": reading from it costs {rate} (prices of {rate.read})"


def _priced(file: StackFile, accelerator: AcceleratorType) -> bool:
    zones = file.tpu.zones or accelerator.zones
    prices = [node_price(accelerator, zone, capacity=file.tpu.capacity) for zone in zones]
    return None not in prices if file.tpu.zones else any(prices)


def _node_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if accelerator.generation not in NODE_GENERATIONS:
        yield Diagnostic(
            "TPU type not available as TPU node",
            f"{accelerator.name} is offered only as TPU VM",
            "Use\n    kind: vm",
            text.where("tpu.type"),
        )
    version = file.tpu.runtime
    if version != "auto" and node_version(version) is None:
        like = nearest(version, [node_version_.version for node_version_ in node_versions()])
        yield Diagnostic(
            "Unknown runtime",
            f"TPU nodes have no version {version}",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + f"Or use auto, which is {node_versions()[0].version}.",
            text.where("tpu.runtime"),
        )
    if file.job.framework == "jax":
        yield Diagnostic(
            "Not for TPU nodes",
            "JAX does not support TPU nodes",
            "Use\n    kind: vm",
            text.where("job.framework"),
        )
    for key in ("topology", "queue"):
        if getattr(file.tpu, key) is not None:
            yield Diagnostic(
                "Not for TPU nodes",
                f"tpu.{key} is only for TPU VMs",
                "Remove it, or use\n    kind: vm",
                text.where(f"tpu.{key}"),
            )
    if file.tpu.capacity in ("spot", "flex-start"):
        yield Diagnostic(
            "Not for TPU nodes",
            f"TPU nodes do not support capacity {file.tpu.capacity}",
            "Use on-demand, preemptible or reserved.",
            text.where("tpu.capacity"),
        )
    yield from _range_problems(file.network.node_range, accelerator, text)


def _range_problems(
    node_range: str, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if node_range in ("auto", "service-networking"):
        return
    prefix = node_cidr_prefix(accelerator)
    where = text.where("network.node_range")
    try:
        network = ipaddress.IPv4Network(node_range)
    except ValueError as error:
        yield Diagnostic(
            "Invalid value", f"network.node_range: {error}", "For example auto.", where
        )
        return
    if network.prefixlen > prefix:
        yield Diagnostic(
            "Address range too small",
            f"{accelerator.name} needs a /{prefix}; {node_range} is smaller",
            "Use auto to find a free range.",
            where,
        )


def _vm_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if file.network.node_range != "auto":
        yield Diagnostic(
            "Only for TPU nodes",
            "network.node_range is the address range of a TPU node",
            "Remove it, or use\n    kind: node",
            text.where("network.node_range"),
        )
    topology = file.tpu.topology
    if topology is None:
        return
    parts = topology.split("x")
    is_shape = all(part.isdigit() and int(part) > 0 for part in parts) and len(parts) in (2, 3)
    if not is_shape or math.prod(map(int, parts)) != accelerator.chips:
        problem = (
            f"{accelerator.name} has {accelerator.chips} chips, which {topology} does not match"
        )
    elif "compute" in sellers_of(file, accelerator) and topology not in topologies_of(accelerator):
        problem = f"Compute Engine does not offer {accelerator.name} as {topology}"
    else:
        return
    yield Diagnostic(
        "Topology incompatible with TPU type",
        problem,
        f"Topologies of this type: {', '.join(topologies_of(accelerator))}.",
        text.where("tpu.topology"),
    )


def _capacity_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    queue, capacity = file.tpu.queue, file.tpu.capacity
    apis = sellers_of(file, accelerator)
    is_spot = capacity in ("spot", "preemptible")
    for key, section in (("spot", file), ("tpu.spot", file.tpu)):
        if "spot" in section.model_fields_set and section.spot != is_spot:
            yield Diagnostic(
                "Contradicting keys",
                f"{key} is {str(section.spot).lower()}, and tpu.capacity is {capacity}",
                "Remove one of them.",
                text.where(key),
            )
    if capacity == "flex-start" and not any(flex_start_zones(accelerator, api) for api in apis):
        yield Diagnostic(
            "Flex-start not available",
            f"no zone is known to offer {accelerator.name} with flex-start",
            "Choose a v5e, v5p or v6e type, or another capacity"
            + (" with\n    queue: true" if "tpu" in apis else "."),
            text.where("tpu.capacity"),
        )
    if capacity == "flex-start" and (queue is None or queue.run_for is None):
        yield Diagnostic(
            "Flex-start without a duration",
            "flex-start requires a queue with a run duration",
            "For example\n    queue: {run_for: 4h}",
            text.where("tpu.capacity"),
        )
    if file.tpu.reservation is not None:
        yield from _reservation_problems(file, apis, text)
    if queue is None:
        return
    if queue.run_for is not None:
        if capacity != "flex-start":
            yield Diagnostic(
                "Run duration without flex-start",
                f"tpu.queue.run_for requires flex-start; the capacity is {capacity}",
                "Use limits.max_hours, or\n    capacity: flex-start",
                text.where("tpu.queue.run_for"),
            )
        if seconds_of(queue.run_for) > MAX_RUN_SECONDS:
            yield Diagnostic(
                "Run duration too long",
                f"flex-start runs up to 7 days, not {queue.run_for}",
                "Set 7d or less.",
                text.where("tpu.queue.run_for"),
            )
    if queue.guaranteed and file.tpu.capacity in ("spot", "preemptible", "flex-start"):
        yield Diagnostic(
            "Capacity cannot be guaranteed",
            f"{capacity} nodes may be preempted",
            "Remove tpu.queue.guaranteed, or use on-demand or reserved.",
            text.where("tpu.queue.guaranteed"),
        )
    if queue.reservation is not None and capacity != "reserved":
        yield Diagnostic(
            "Reservation without reserved capacity",
            f"tpu.queue.reservation requires capacity: reserved; it is {capacity}",
            "Use\n    capacity: reserved",
            text.where("tpu.queue.reservation"),
        )


def _reservation_problems(
    file: StackFile, apis: Sequence[Api], text: StackText
) -> Iterator[Diagnostic]:
    queue, capacity, where = file.tpu.queue, file.tpu.capacity, text.where("tpu.reservation")
    if capacity != "reserved":
        yield Diagnostic(
            "Reservation without reserved capacity",
            f"tpu.reservation requires capacity: reserved; it is {capacity}",
            "Use\n    capacity: reserved",
            where,
        )
    if queue is not None and queue.reservation is not None:
        yield Diagnostic(
            "Two reservations",
            "tpu.reservation and tpu.queue.reservation are both set",
            "Remove tpu.queue.reservation.",
            where,
        )
    elif queue is None and "tpu" in apis and file.tpu.slices == 1:
        yield Diagnostic(
            "Reservation without a queue",
            "the Cloud TPU API uses a reservation by its name only through a queued resource",
            "Add\n    tpu: {queue: true}",
            where,
        )


def _disk_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    for index, disk in enumerate(file.tpu.data_disks):
        where = text.where(f"tpu.data_disks.{index}")
        if (disk.name is None) == (disk.size_gb is None):
            yield Diagnostic(
                "Invalid data disk",
                f"tpu.data_disks.{index} needs either a name or a size_gb",
                "For an existing disk: {name: my-disk}. For a new disk: {size_gb: 100}.",
                where,
            )
        nodes = _nodes(file)
        if disk.mode == "read-write" and accelerator.workers * nodes > 1 and file.tpu.kind == "vm":
            yield Diagnostic(
                "Disk cannot be shared read-write",
                f"{nodes} x {accelerator.name} has {nodes * accelerator.workers} workers"
                if nodes > 1
                else f"{accelerator.name} has {accelerator.workers} workers",
                "Attach it with\n    mode: read-only",
                where,
            )
