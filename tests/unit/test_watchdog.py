"""The watchdog's decisions to delete a machine, and its configuration, without waiting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE, V6E_ZONE
from tests.support.machine_folder import machine_folder
from tests.support.stacks import bert_stack
from tpuctl.jobs.shipped.watchdog.watchdog import (
    Process,
    activity,
    age_limit_reason,
    idle_limit_reason,
    is_busy,
    parse_timestamp,
    state_of,
    tick,
)
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.access.custom_roles import watchdog_permissions
from tpuctl.resources.machines.instance_metadata import (
    metadata_differs,
    metadata_of,
    watch_metadata,
)

PROGRAMS = [machine_folder() / name for name in ("watchdog.py", "ensure_watchdog.py", "probe.py")]
OLDEST = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()
PYTHONS = [sys.executable, str(OLDEST)] if OLDEST.exists() else [sys.executable]
TPU = "https://tpu.googleapis.com"
LOCATION = "projects/my-project/locations/us-central1-b"
INSTANCE = (
    "https://compute.googleapis.com/compute/v1/projects/my-project/zones/us-central1-b/"
    "instances/bert-controller"
)


def stack_of(folder: Path, tpu: str = "type: v2-8", more: str = "", zone: str = US_ZONE) -> Stack:
    return bert_stack(folder, f"access: {{user: me}}\ntpu: {{zones: [{zone}], {tpu}}}\n{more}")


def config_of(stack: Stack, *, on_controller: bool = False) -> dict[str, Any]:
    metadata = watch_metadata(stack, on_controller=on_controller)
    return dict(json.loads(metadata["tpuctl-watchdog"]))


# Activity ------------------------------------------------------------------------------------

SYSTEM = [
    Process(1, 0, 1, ["/sbin/init"]),
    Process(50, 1, 50, ["sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"]),
    Process(60, 1, 60, ["/usr/bin/google_guest_agent"]),
]
LOCAL = [Process(1, 0, 1, ["/usr/bin/python3", "sandbox.py"]), Process(5, 1, 4, ["watchdog.py"])]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], ""),
        ([Process(70, 50, 70, ["sshd: me [priv]"])], ""),
        ([Process(70, 50, 70, ["sshd: unknown [net]"])], ""),
        ([Process(70, 50, 70, ["sshd: me@pts/0"])], "a user is logged in"),
        ([Process(70, 50, 70, ["sshd: me@notty"])], "a user is logged in"),
        ([Process(70, 50, 70, ["sshd-session: me@pts/0"])], "a user is logged in"),
        ([Process(70, 1, 70, ["python3", "/home/me/train.py", "sshd: me@pts/0"])], ""),
        (
            [
                Process(
                    70, 1, 69, ["python3", "-S", "-I", ".tpuctl/jobs/a/1/supervisor.py", "start"]
                )
            ],
            "a job is running",
        ),
        (
            [
                Process(
                    70,
                    1,
                    70,
                    ["python3", "-S", "-I", "/home/me/.tpuctl/jobs/a/1/job_parent.py", "x"],
                )
            ],
            "a job is running",
        ),
        ([Process(70, 1, 70, ["python3", "/home/me/job_parent.py"])], ""),
        ([Process(70, 1, 70, ["vim", "/home/me/.tpuctl/jobs/a/1/log"])], ""),
    ],
)
def test_what_counts_as_activity(more: list[Process], expected: str) -> None:
    assert activity([*SYSTEM, *more], None) == expected


NOTEBOOK = [
    Process(70, 1, 69, ["python3", ".tpuctl/jobs/a/1/new.7/supervisor.py", "start"]),
    Process(71, 70, 71, ["python3", "/home/me/.tpuctl/jobs/a/1/job_parent.py", "x"]),
    Process(72, 71, 72, ["python3", "../notebook.py"]),
]


@pytest.mark.parametrize(
    ("more", "state", "expected"),
    [
        ([], {"is_busy": True}, "a notebook's kernel is busy"),
        ([], {"is_busy": False}, ""),
        # `tpuctl notebook` is connected, and forwards its port.
        ([Process(80, 50, 80, ["sshd: me@notty"])], {"is_busy": False}, ""),
        (
            [Process(80, 50, 80, ["sshd: me@notty"]), Process(81, 80, 81, ["rsync"])],
            {"is_busy": False},
            "a user is logged in",
        ),
        ([Process(80, 50, 80, ["sshd: me@pts/0"])], {"is_busy": False}, "a user is logged in"),
        (
            [Process(80, 1, 80, ["python3", ".tpuctl/jobs/b/1/supervisor.py", "start"])],
            {"is_busy": False},
            "a job is running",
        ),
    ],
)
def test_notebooks_are_active_while_a_kernel_is(
    more: list[Process], state: dict[str, Any], expected: str
) -> None:
    assert activity([*SYSTEM, *NOTEBOOK, *more], None, {"a/1": state}) == expected


def test_forwarded_port_is_activity_without_a_notebook() -> None:
    forwarding = Process(80, 50, 80, ["sshd: me@notty"])
    after_a_notebook = {"a/1": {"is_busy": True}}
    assert activity([*SYSTEM, forwarding], None, after_a_notebook) == "a user is logged in"


def test_other_local_machines_are_not_activity() -> None:
    """Without namespaces a machine sees all processes of the computer."""
    others = [
        Process(30, 1, 30, ["sshd: me@pts/0"]),
        Process(40, 1, 40, ["python3", "sandbox.py"]),
        Process(41, 40, 41, ["bash"]),
        Process(42, 41, 41, ["python3", "/m/home/me/.tpuctl/jobs/a/1/job_parent.py"]),
        Process(45, 1, 45, ["python3", "sandbox.py"]),
    ]
    assert activity(others, 45) == ""
    assert activity(others, 40) == "a user is logged in"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], ""),
        ([Process(8, 1, 8, ["bash"])], "a user is logged in"),
        ([Process(8, 1, 7, ["daemon"])], ""),  # an orphan of a session that is over
        ([Process(8, 5, 4, ["sleep", "1"])], ""),  # of the watchdog itself
    ],
)
def test_logins_on_local_cloud(more: list[Process], expected: str) -> None:
    assert activity([*LOCAL, *more], 1) == expected


# Limits --------------------------------------------------------------------------------------


def test_age_counts_from_creation_and_idle_time_from_last_activity() -> None:
    config = {"max_seconds": 3600.0, "reason": "it is 1 hours old"}
    assert age_limit_reason(config, 4599.0, created=1000.0) == ""
    assert age_limit_reason(config, 4600.0, created=1000.0) == "it is 1 hours old"
    assert age_limit_reason({}, 1e12, created=0.0) == ""
    config = {"idle_seconds": 60.0}
    assert idle_limit_reason(config, 159.0, active=100.0) == ""
    assert "limits.idle" in idle_limit_reason(config, 160.0, active=100.0)
    assert idle_limit_reason({"idle_seconds": None}, 1e12, active=0.0) == ""


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({}, False),
        ({"last-active": 1000.0}, False),
        ({"last-active": 4590.0}, True),
        ({"last-active": 4700.0, "jobs-ended": 3000.0}, True),
        ({"last-active": 4700.0, "jobs-ended": 4601.0}, False),
    ],
)
def test_machines_are_busy_until_their_jobs_have_ended(
    machine: dict[str, float], expected: bool
) -> None:
    assert is_busy(machine, limit_time=4600.0) is expected


@pytest.mark.parametrize(
    ("config", "age", "expected"),
    [
        ({}, 0.0, 30.0),
        ({"idle_seconds": 1800}, 0.0, 30.0),
        ({"idle_seconds": 8}, 0.0, 2.0),
        ({"idle_seconds": 0.01}, 0.0, 0.2),
        ({"max_seconds": 100.0}, 90.0, 10.0),
        ({"max_seconds": 100.0}, 99.99, 0.2),
        ({"max_seconds": 100.0}, 500.0, 30.0),
    ],
)
def test_checks_are_rare_but_never_late(
    config: dict[str, Any], age: float, expected: float
) -> None:
    assert tick(config, age) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T00:00:10.123456789Z", 10.0),
        ("1969-12-31T16:00:10.000-08:00", 10.0),
        ("1970-01-01T05:30:10+05:30", 10.0),
    ],
)
def test_timestamps_of_both_apis(text: str, expected: float) -> None:
    assert parse_timestamp(text) == expected


# Configuration -------------------------------------------------------------------------------


V1, V2 = f"{TPU}/v1/{LOCATION}", f"{TPU}/v2/{LOCATION}"
NODE, ATTRIBUTES = f"{V2}/nodes/bert-tpu", f"{V2}/nodes/bert-tpu:getGuestAttributes"
OF_INSTANCE = f"{INSTANCE}/getGuestAttributes?queryPath=tpuctl/"
FOREIGN = "projects/my-project/locations/europe-west4-a/nodes/bert-tpu:getGuestAttributes"


@pytest.mark.parametrize(
    ("stack", "on_controller", "expected"),
    [
        (("type: v2-8",), False, {"delete": [NODE], "tpu": NODE, "peers": []}),
        (("type: v2-8",), False, {"idle_seconds": 1800.0, "max_seconds": None}),
        # A slice watches all its workers.
        (("type: v2-32", "", "europe-west4-a"), False, {"peers": [f"{TPU}/v2/{FOREIGN}"]}),
        (
            ("type: v2-8, queue: {nodes: 2}",),
            False,
            {
                "delete": [f"{V2}/queuedResources/bert-queue?force=true"],
                "peers": [f"{V2}/nodes/bert-tpu-{i}:getGuestAttributes" for i in range(2)],
            },
        ),
        # The controller deletes the node before itself; users do not log in to the node's machine.
        (
            ("type: v2-8, kind: node",),
            True,
            {
                "delete": [f"{V1}/nodes/bert-tpu", INSTANCE],
                "tpu": f"{V1}/nodes/bert-tpu",
                "peers": [],
            },
        ),
        # A controller and a TPU VM each delete themselves last.
        (
            ("type: v2-8", "controller: {}\n"),
            False,
            {"delete": [INSTANCE, NODE], "peers": [ATTRIBUTES, OF_INSTANCE]},
        ),
        (("type: v2-8", "controller: {}\n"), True, {"delete": [NODE, INSTANCE]}),
    ],
)
def test_what_is_watched_and_deleted(
    tmp_path: Path, stack: tuple[str, ...], on_controller: bool, expected: dict[str, Any]
) -> None:
    config = config_of(stack_of(tmp_path, *stack), on_controller=on_controller)
    assert {key: config[key] for key in expected} == expected


def test_max_cost_is_converted_to_time(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, more="limits: {max_hours: 5, max_cost: 9}\n")
    price = stack.price
    assert price is not None
    hourly = price.per_hour + 0.005  # and the price of an external address
    hours = 9 / hourly
    assert hours < 5, "the test requires that max_cost applies first"
    config = config_of(stack)
    assert config["max_seconds"] == pytest.approx(hours * 3600)
    assert "limits.max_cost" in config["reason"]
    assert f"${hourly:.2f}" in config["reason"]
    longer = stack_of(tmp_path, more="limits: {max_hours: 0.5, max_cost: 9}\n")
    assert config_of(longer)["max_seconds"] == 1800.0
    assert "limits.max_hours" in config_of(longer)["reason"]


def test_startup_script_is_passed_to_watchdog(tmp_path: Path) -> None:
    (tmp_path / "begin.sh").write_text("echo hello\n", "utf-8")
    stack = stack_of(tmp_path, "type: v2-8, startup_script: begin.sh")
    metadata = metadata_of(stack, "me:ssh-ed25519 AAAA me")
    assert metadata["tpuctl-startup-script"] == "echo hello\n"
    assert metadata["startup-script"] == PROGRAMS[0].read_text("utf-8"), "byte for byte"
    without = metadata_of(stack, "me:ssh-ed25519 AAAA me", startup=False)
    assert without["startup-script"] == "echo hello\n"
    assert "tpuctl-startup-script" not in without
    assert without["tpuctl-watchdog"] == metadata["tpuctl-watchdog"], (
        "a watchdog that is started over SSH has the same configuration"
    )
    assert len(metadata["startup-script"]) < 256_000, "the limit of one value"


def test_metadata_of_same_stack_is_equal(tmp_path: Path) -> None:
    """Otherwise each `up` would change the machines."""
    metadata = metadata_of(stack_of(tmp_path), "key")
    assert metadata_differs(metadata, metadata_of(stack_of(tmp_path), "key")) == ()
    other = metadata_of(stack_of(tmp_path, more="limits: {idle: 1h}\n"), "key")
    assert metadata_differs(metadata, other) == ("limits",)
    none = metadata_of(stack_of(tmp_path, more="limits: {idle: null}\n"), "key")
    assert metadata_differs(metadata, none) == ("limits",), "the limit is removed"
    assert metadata_differs({"ssh-keys": "key", "enable-guest-attributes": "TRUE"}, none) == ()
    assert metadata_differs({**metadata, "mine": "1", "ssh-keys": "his\nkey"}, metadata) == ()


# Shipped programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_programs_run_on_oldest_python_without_packages(program: Path, python: str) -> None:
    check = "import sys, runpy; runpy.run_path(sys.argv[1], run_name='checked')"
    done = subprocess.run(
        [python, "-S", "-I", "-c", check, program], check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_unknown_commands_are_rejected(python: str) -> None:
    done = subprocess.run(
        [python, "-S", "-I", PROGRAMS[0], "remove"], check=False, capture_output=True
    )
    assert done.returncode == 2
    assert b"usage" in done.stderr


# Compute Engine -------------------------------------------------------------------------------

COMPUTE = f"https://compute.googleapis.com/compute/v1/projects/my-project/zones/{V6E_ZONE}"
INSTANCES = f"{COMPUTE}/instances?filter=labels.tpuctl-stack%3Dbert"


def compute_stack(folder: Path, name: str, more: str = "") -> Stack:
    return stack_of(folder, f"api: compute, type: {name}", more, zone=V6E_ZONE)


GROUP, MACHINE = f"{COMPUTE}/instanceGroupManagers/bert-tpu", f"{COMPUTE}/instances/bert-tpu"
ITSELF = f"{COMPUTE}/instances/{{instance}}"


@pytest.mark.parametrize(
    ("type_name", "more", "on_controller", "expected"),
    [
        ("v6e-4", "", False, {"delete": [MACHINE], "tpu": ITSELF, "peers": []}),
        # Deleting one instance of a slice would leave the others, which are named later, running.
        ("v6e-16", "", False, {"delete": [GROUP], "tpu": ITSELF, "peers": [INSTANCES]}),
        ("v6e-16, slices: 2", "", False, {"delete": [f"{GROUP}-0", f"{GROUP}-1"]}),
        ("v6e-4", "controller: {}\n", False, {"peers": [INSTANCES]}),
        (
            *("v6e-4", "controller: {}\n", True),
            {"tpu": MACHINE, "delete": [MACHINE, f"{COMPUTE}/instances/bert-controller"]},
        ),
    ],
)
def test_what_is_watched_and_deleted_of_compute_engine(
    tmp_path: Path, type_name: str, more: str, on_controller: bool, expected: dict[str, Any]
) -> None:
    stack = compute_stack(tmp_path, type_name, more)
    config = config_of(stack, on_controller=on_controller)
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("resource", "state"),
    [
        ({"state": "READY"}, "READY"),
        ({"state": {"state": "SUSPENDED"}}, "SUSPENDED"),
        ({"status": "STOPPING"}, "STOPPING"),
        ({"status": {"isStable": True}}, ""),
        ({}, ""),
    ],
    ids=["node", "queued resource", "instance", "instance group", "nothing"],
)
def test_states_of_both_apis(resource: dict[str, Any], state: str) -> None:
    assert state_of(resource) == state


def test_permissions_are_those_that_the_stack_needs(tmp_path: Path) -> None:
    instances = ("compute.instances.get", "compute.instances.delete")
    assert watchdog_permissions(stack_of(tmp_path)) == ("tpu.nodes.get", "tpu.nodes.delete")
    assert watchdog_permissions(compute_stack(tmp_path, "v6e-4")) == instances
    group = watchdog_permissions(compute_stack(tmp_path, "v6e-16"))
    assert {*group} == {
        *("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.delete"),
        *("compute.instanceGroups.delete", "compute.instances.get", "compute.instances.list"),
        "compute.instances.getGuestAttributes",
    }
