"""Stack files: defaults are resolved, and every error is reported once, with its line."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from pathlib import Path

import pytest

from tests.support.stacks import bert_stack
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import InvalidStack
from tpuctl.model.stack.stack import load_stack, slug
from tpuctl.resources.composition import resources_of
from tpuctl.resources.tpu.tpu_group import TpuGroup

NAMED = "project: {id: my-project}\n"
HOST = "projects/net-host/global/networks/corp"
SUBNETWORK = "projects/net-host/regions/us-east1/subnetworks/tpus"
MINIMAL = NAMED + "tpu: {type: v3-8}\n"
NODE = NAMED + "tpu: {type: v3-8, kind: node}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "tpuctl.yaml"
    path.write_text(text, "utf-8")
    return path


def problems(folder: Path, text: str) -> list[tuple[str, str]]:
    """Summary and line of each problem found."""
    with pytest.raises(InvalidStack) as caught:
        load_stack(write(folder, text))
    assert caught.value.exit_code == 2
    return [
        (diagnostic.summary, diagnostic.where.rpartition(":")[2])
        for diagnostic in caught.value.diagnostics
    ]


def test_project_and_type_are_enough(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    stack = load_stack(write(folder, MINIMAL))
    assert stack.name == "my-model"
    assert stack.runtime.tensorflow == "2.18.0"
    assert stack.zone in stack.accelerator.zones
    assert stack.bucket_location == stack.zone.rpartition("-")[0]
    assert stack.bucket == "my-model-my-project"
    stack = load_stack(write(tmp_path, MINIMAL))
    # 2.0 dollars per chip in these, 2.2 in europe-west4-a, according to the catalog's source.
    assert stack.zone in {"us-central1-a", "us-central1-b", "us-central1-f", "us-east1-d"}
    assert stack.price is not None
    assert stack.price.per_hour == pytest.approx(8.0)
    # kubeflow/kubeflow#2244, google/clusterfuzz#538: NAME@my-project.example.com.iam…
    text = 'stack: bert\nproject: {id: "example.com:my-project"}\ntpu: {type: v3-8}\n'
    stack = load_stack(write(tmp_path, text))
    assert stack.service_account == "bert-tpu@my-project.example.com.iam.gserviceaccount.com"
    assert stack.bucket == "bert-example-com-my-project"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tpu: {type: v3-8}\n", ("Missing key", "tpuctl.yaml")),
        (NAMED + "tpu: {}\n", ("Missing key", "2")),
        (MINIMAL + "bukcet: {keep: true}\n", ("Unknown key", "3")),
        (MINIMAL + "bucket:\n  keep: perhaps\n", ("Invalid value", "4")),
        ("stack: Bert_KO\n" + MINIMAL, ("Invalid value", "1")),
        ("project: {id: x}\ntpu: {type: v3-8}\n", ("Invalid value", "1")),
        (NAMED + "tpu: {type: v3-9}\n", ("Unknown TPU type", "2")),
        (MINIMAL + f"network:\n  name: {HOST}\n", ("Missing key", "4")),
        (
            MINIMAL + f"network:\n  name: {HOST}\n  subnetwork: {SUBNETWORK}\n",
            ("Subnetwork of another region", "5"),
        ),
        (
            MINIMAL + f"network: {{subnetwork: {SUBNETWORK.replace('us-east1', 'us-central1')}}}\n",
            ("Network of another project", "3"),
        ),
        (
            NODE + f"network: {{name: {HOST}, subnetwork: s}}\n",
            ("Address range in a host project", "3"),
        ),
        (MINIMAL + "network:\n  nat: true\n", ("Cloud NAT with external addresses", "4")),
        (
            MINIMAL + f"network: {{name: {HOST}, subnetwork: s, ssh: iap, nat: true}}\n",
            ("Cloud NAT in a host project", "3"),
        ),
        (MINIMAL + "network: {name: projects/net-host/global/nets/s}\n", ("Invalid value", "3")),
        (MINIMAL + 'access:\n  ssh_key: "k\\nHost *"\n', ("Invalid value", "4")),
        (MINIMAL + 'job: {exclude: [a, "b\\e[2J"]}\n', ("Invalid value", "3")),
        (MINIMAL + 'job: {wheels: "a\\u2028b"}\n', ("Invalid value", "3")),
        (MINIMAL + 'job: {env: {A: "a\\0b"}}\n', ("Invalid value", "3")),
        (MINIMAL + 'job: {setup: "\\ud800"}\n', ("Invalid value", "3")),
        (
            NAMED + "tpu:\n  type: v3-8\n  zones: [us-central1-a, asia-east1-c]\n",
            ("TPU type not offered in zone", "4"),
        ),
        (
            NAMED + "tpu:\n  type: v3-8\n  runtime: tpu-vm-tf-2.18.0-pjrt-v5e-and-v6\n",
            ("Runtime incompatible with TPU type", "4"),
        ),
        (
            NAMED + "tpu:\n  type: v3-32\n  runtime: tpu-vm-tf-2.16.1-pjrt\n",
            ("Runtime incompatible with TPU type", "4"),
        ),
        (MINIMAL + "bucket: {location: asia-east1}\n", ("Bucket outside the TPU's region", "3")),
        (MINIMAL + "job: {workers: [0, 1]}\n", ("No such worker", "3")),
        (MINIMAL + "job: {retries: {failures: 1}}\n", ("Unknown key", "3")),
        (MINIMAL + "job: {framework: jaxx}\n", ("Invalid value", "3")),
        (MINIMAL + "job: {limits: {hang: often}}\n", ("Invalid value", "3")),
        (MINIMAL + "job: {limits: {hang: 10}}\n", ("Invalid value", "3")),
        (MINIMAL + "job:\n  limits: {hang: 0s}\n", ("Invalid value", "4")),
        (MINIMAL + "limits: {max_hours: -1}\n", ("Invalid value", "3")),
        (NAMED + "tpu: {type: v3-8, kind: pod}\n", ("Invalid value", "2")),
        (MINIMAL + "limits: {idle: soon}\n", ("Invalid value", "3")),
        (MINIMAL + "labels: {A: b}\n", ("Invalid value", "3")),
        (MINIMAL + "labels: {a: B}\n", ("Invalid value", "3")),
        (MINIMAL + "labels: {tpuctl-stack: b}\n", ("Reserved label", "3")),
        (MINIMAL + "controller: {disk_gb: 5}\n", ("Invalid value", "3")),
        (MINIMAL + "controller: {scopes: x}\n", ("Invalid value", "3")),  # reported once
        ("project: [\n", ("Invalid YAML in stack file", "2")),
        ("", ("Stack file is not a mapping", "tpuctl.yaml")),
        ("- a\n- b\n", ("Stack file is not a mapping", "tpuctl.yaml")),
        (
            MINIMAL + "tpu: {type: v2-8}\n",
            ("Duplicate key", "3"),
        ),  # YAML parsers would use the last
        (MINIMAL + "bucket: {keep: true, keep: false}\n", ("Duplicate key", "3")),
        (
            MINIMAL + "job: {workers: many}\n",
            ("Invalid value", "3"),
        ),  # matches neither type, reported once
        (MINIMAL + "job:\n  env:\n    A B: x\n", ("Invalid value", "5")),
        (MINIMAL + "limits: {max_hours: .inf}\n", ("Invalid value", "3")),
        (MINIMAL + "bucket: &b {x: *b}\n", ("YAML alias in stack file", "3")),  # infinite recursion
        (MINIMAL + "x: " + "[" * 3000, ("Invalid YAML in stack file", "3")),
        ("stack: " + "9" * 5000 + "\n" + MINIMAL, ("Invalid YAML in stack file", "tpuctl.yaml")),
        ("stack: 2024-13-01\n" + MINIMAL, ("Invalid YAML in stack file", "tpuctl.yaml")),
    ],
)
def test_problems_have_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(tmp_path, text) == [expected]


def test_invalid_utf8_has_line_number(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_bytes(MINIMAL.encode() + b"# caf\xe9\n")
    with pytest.raises(InvalidStack) as caught:
        load_stack(path)
    assert caught.value.diagnostics[0].where.endswith(":3")
    assert "UTF-8" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("project: 5\ntpu: {type: v2-8}\n", "project cannot be 5"),
        (NAMED + "tpu: {type: v2-8, zones: us-central1-b}\n", "tpu.zones must be a list"),
        (MINIMAL + "job: {env: {A: 1}}\n", "job.env.A must be text, not 1"),
        (MINIMAL + "bucket: {keep: perhaps}\n", "bucket.keep must be true or false"),
    ],
)
def test_expected_types_are_named_in_yaml_terms(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidStack) as caught:
        load_stack(write(tmp_path, text))
    assert caught.value.diagnostics[0].detail.startswith(expected)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    text = (
        "stack: UP\nproject: {id: my-project, owner: me}\ntpu: {typ: v3-8}\n"
        "job: {secrets: {A: b}}\n"
    )
    assert {summary for summary, _ in problems(tmp_path, text)} == {
        "Invalid value",
        "Unknown key",
        "Missing key",
        "Invalid secret source",
    }


def test_missing_file_and_similar_keys_have_hints(tmp_path: Path) -> None:
    with pytest.raises(InvalidStack) as caught:
        load_stack(tmp_path / "tpuctl.yaml")
    assert "tpuctl init" in caught.value.diagnostics[0].hint
    with pytest.raises(InvalidStack) as caught:
        load_stack(write(tmp_path, MINIMAL + "network: {alow: [http]}\n"))
    assert "allow" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("type_name", "runtime", "workers", "expected"),
    [
        ("v3-8", "auto", "auto", (0,)),
        ("v3-32", "auto", "auto", (0,)),  # multi-host TensorFlow runs on worker 0
        ("v3-32", "auto", "all", (0, 1, 2, 3)),
        ("v3-32", "tpu-ubuntu2204-base", "auto", (0, 1, 2, 3)),  # JAX runs on every worker
        ("v3-32", "auto", "[1, 3]", (1, 3)),
    ],
)
def test_job_workers(
    tmp_path: Path, type_name: str, runtime: str, workers: str, expected: tuple[int, ...]
) -> None:
    text = (
        f"project: {{id: my-project}}\ntpu: {{type: {type_name}, runtime: {runtime}}}\n"
        f"job: {{workers: {workers}}}\n"
    )
    assert load_stack(write(tmp_path, text)).job_workers() == expected


@pytest.mark.parametrize("runtime", ["auto", "2.12.0", "pytorch-1.13"])
@pytest.mark.parametrize("workers", ["auto", "all", "[0]"])
def test_controller_runs_script_of_tpu_node(tmp_path: Path, runtime: str, workers: str) -> None:
    text = (
        "project: {id: my-project}\n"
        f"tpu: {{kind: node, type: v3-32, runtime: {runtime}}}\njob: {{workers: {workers}}}\n"
    )
    stack = load_stack(write(tmp_path, text))
    assert stack.job_workers() == (0,)
    assert stack.worker_count == 1


@pytest.mark.parametrize("text", ["", "1", "---", "Über Größe", "a" * 60, "9lives", "x_y.z"])
def test_any_folder_name_gives_a_stack_name(tmp_path: Path, text: str) -> None:
    stack = load_stack(write(tmp_path, f"stack: {slug(text)}\n" + MINIMAL))
    assert stack.name == slug(text)


def test_prefix_begins_all_names(tmp_path: Path) -> None:
    text = f"stack: bert\nnames: {{prefix: ml-}}\n{MINIMAL}"
    stack = load_stack(write(tmp_path, text))
    assert stack.name == "ml-bert"
    assert stack.bucket.startswith("ml-bert-")
    assert {stack.names.node, stack.names.tag} == {"ml-bert-tpu"}
    long = text.replace("bert", "b" * 24)
    with pytest.raises(InvalidStack, match=r"named ml-b+, which has 27 characters of at most 26"):
        load_stack(write(tmp_path, long))


def test_different_folders_have_different_stacks() -> None:
    """Names of other scripts (reported of tools that drop such letters), accents, long names."""
    names = [
        *(
            "한국어 모델",
            "영어 모델",
            "bert-한국어",
            "bert-영어",
            "bert",
            "日本語",
            "модель",
            "عربي",
        ),
    ]
    names += ["résumé", "resume", "a" * 60, "a" * 61, "bert-🚀", "---", "___", "größe", "grosse"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("Über") == slug("Über"), "as macOS stores it"
    assert slug("Über Größe").startswith("uber-grosse-")


@pytest.mark.parametrize(
    ("text", "name"),
    [("My Model", "my-model"), ("x_y.z", "x-y-z"), ("9", "stack-9"), ("", "stack")],
)
def test_plain_folder_name_is_the_stack_name(text: str, name: str) -> None:
    assert slug(text) == name


@pytest.mark.parametrize(
    "user",
    [
        "-oProxyCommand=touch /tmp/PWNED;",
        "root; id",
        "$(id)",
        "a b",
        "a/b",
        "-n",
        "a@b",
        "9lives",
        "",
        "a\n",
        "u" * 33,
    ],
)
def test_invalid_user_name_is_rejected(tmp_path: Path, user: str) -> None:
    text = MINIMAL + f"access:\n  user: {json.dumps(user)}\n"
    assert problems(tmp_path, text) == [("Invalid value", "4")]


@pytest.mark.parametrize("user", ["ann", "Ann.Lee", "ann-lee_2", "_ann", "u" * 32])
def test_posix_user_name_is_accepted(tmp_path: Path, user: str) -> None:
    assert load_stack(write(tmp_path, MINIMAL + f"access: {{user: {user}}}\n")).user == user


@pytest.mark.parametrize("local", ["-oproxycommand", "9lives", "root", "Ünï", ""])
def test_invalid_local_user_name_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    monkeypatch.setenv("LOGNAME", local)
    user = load_stack(write(tmp_path, MINIMAL)).user
    assert re.fullmatch("[a-z_][a-z0-9_-]*", user) and user != "root"


@pytest.mark.parametrize(
    "name",
    [
        "-b",
        "$(id)",
        "../x",
        "gs://mybucket",
        "My_Bucket",
        "a/b",
        "ab",
        "a" * 64,
        "a-",
        "a..b",
        "10.0.0.1",
        "googbucket",
        "my-google-data",
        "",
    ],
)
def test_invalid_bucket_name_is_rejected(tmp_path: Path, name: str) -> None:
    text = MINIMAL + f"bucket:\n  name: {json.dumps(name)}\n"
    assert problems(tmp_path, text) == [("Invalid value", "4")]


@pytest.mark.parametrize("name", ["my_data", "1ab", "a" * 63, "data.example.com", "b-1"])
def test_valid_bucket_name_is_accepted(tmp_path: Path, name: str) -> None:
    assert load_stack(write(tmp_path, MINIMAL + f"bucket: {{name: {name}}}\n")).bucket == name


def test_invalid_default_bucket_name_is_rejected(tmp_path: Path) -> None:
    text = "stack: google-bert\n" + MINIMAL
    assert [summary for summary, _ in problems(tmp_path, text)] == ["Invalid bucket name"]
    assert load_stack(write(tmp_path, text + "bucket: {name: mine}\n")).bucket == "mine"
    text = NAMED + "tpu:\n  type: v3-8\n  metadata: {a/b: c}\n"
    assert problems(tmp_path, text) == [("Invalid value", "4")]
    assert load_stack(write(tmp_path, tpu("type: v6e-16, topology: 2x8"))).file.tpu.topology


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("tpu:\n  type: v3-8\n", "service_account"),
        ("controller:\n  disk_gb: 50\n", "machine_type"),
        ("controller:\n  disk_gb: 50\n", "image"),
        ("bucket:\n  keep: true\n", "location"),
        ("network:\n  ssh: iap\n", "name"),
        ("network:\n  ssh: iap\n", "subnetwork"),
    ],
)
@pytest.mark.parametrize("value", ["../../x", "a?b", "a b", "a#b", "$(id)", "x/../y", ""])
def test_names_in_resource_paths_have_no_slash(
    tmp_path: Path, section: str, key: str, value: str
) -> None:
    rest = NAMED if section.startswith("tpu") else MINIMAL
    lines = (rest + section).count("\n")
    text = f"{rest}{section}  {key}: {json.dumps(value)}\n"
    assert problems(tmp_path, text) == [("Invalid value", str(lines + 1))]


def test_special_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    """A pipe without a writer, an endless device, a link to itself, a huge file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    whys = {
        tmp_path / "pipe": "Not a regular file",
        Path("/dev/zero"): "Not a regular file",
        tmp_path / "loop": os.strerror(errno.ELOOP),
        tmp_path / "large": "Larger than",
    }
    for path, reason in whys.items():
        with pytest.raises(InvalidStack) as caught:
            load_stack(path)
        (diagnostic,) = caught.value.diagnostics
        assert (diagnostic.summary, reason in diagnostic.detail) == ("Cannot read stack file", True)


def tpu(text: str) -> str:
    return NAMED + f"tpu: {{{text}}}\n"


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("type: v6e-4", ["us-east5-a"]),
        ("type: v6e-4, api: compute", ["us-east5-a/compute"]),
        ("type: v6e-4, api: auto", ["us-east5-a", "us-east5-a/compute"]),
        ("type: tpu7x-8, zones: [us-central1-c]", ["us-central1-c/compute"]),
        ("type: tpu7x-8, zones: [us-central1-c], api: auto", ["us-central1-c/compute"]),
        (
            "type: v5p-8, zones: [europe-west4-b, europe-west1-c], api: auto",
            ["europe-west4-b", "europe-west4-b/compute", "europe-west1-c/compute"],
        ),
        ("type: v5litepod-8, zones: [us-west4-a], api: auto", ["us-west4-a"]),
        ("type: v6e-4, api: auto, capacity: reserved", ["us-east5-a"]),
    ],
)
def test_candidates(tmp_path: Path, text: str, candidates: list[str]) -> None:
    zones = "" if "zones" in text else ", zones: [us-east5-a]"
    egress = "bucket: {allow_egress: true}\n"
    stack = load_stack(write(tmp_path, tpu(text + zones) + egress))
    assert [candidate.key for candidate in stack.candidates] == candidates
    assert stack.candidate == stack.candidates[0]


COMPUTE = "type: v6e-4, api: compute"


@pytest.mark.parametrize(
    ("text", "summary", "words"),
    [
        ("type: v5litepod-8, api: compute", "TPU type not offered by this API", "{api: tpu}"),
        ("type: tpu7x-8, api: tpu", "TPU type not offered by this API", "{api: compute}"),
        ("type: v3-8, kind: node, api: compute", "TPU type not offered by this API", "{api: tpu}"),
        ("type: v6e-16, api: compute, topology: 2x8", "Topology incompatible with", "4x4"),
        ("type: v6e-16, api: compute, topology: 4x8", "Topology incompatible with", "16 chips"),
        ("type: ct6e-standard-4t", "Machine type instead of TPU type", "type: v6e-4, api: compute"),
        ("type: ct5p-hightpu-4t", "Machine type instead of TPU type", "type: v5p-8"),
        ("type: tpu8t-16", "TPU type not sold yet", "TPU 8t was announced on 2026-04-22"),
        (f"{COMPUTE}, queue: true", "Not for TPUs of Compute Engine", "only flex-start"),
        (f"{COMPUTE}, runtime: v2-alpha-tpuv6e", "Not for TPUs of", "ubuntu-accel-2204"),
        (f"{COMPUTE}, data_disks: [{{size_gb: 100}}]", "Not for TPUs of", "tpu.boot_disk"),
        ("type: v6e-4, api: auto, data_disks: [{size_gb: 100}]", "Not for TPUs of", "{api: tpu}"),
        ("type: v6e-4, api: auto, queue: {nodes: 2}", "Not for TPUs of", "{api: tpu}"),
        (
            f"{COMPUTE}, boot_disk: {{type: pd-balanced}}",
            "Boot disk incompat",
            "hyperdisk-balanced",
        ),
        ("type: v6e-4, boot_disk: {size_gb: 200}", "Only for TPUs of Compute Engine", "data_disks"),
        (f"{COMPUTE}, capacity: reserved", "No reservation", "tpu.reservation"),
        (f"{COMPUTE}, reservation: ours", "Reservation without reserved capacity", "on-demand"),
        (
            "type: v6e-4, capacity: reserved, reservation: ours, queue: {reservation: ours}",
            "Two reservations",
            "Remove tpu.queue.reservation",
        ),
        ("type: v6e-4, capacity: reserved, reservation: ours", "Reservation without a queue", ""),
        (
            f"{COMPUTE}, capacity: flex-start, queue: {{run_for: 4h, valid_until: 3h}}",
            "Waiting time out of range",
            "between 90s and 2h",
        ),
        (
            f"{COMPUTE}, capacity: flex-start, queue: {{run_for: 4h, provisioning_timeout: 3h}}",
            "Not for TPUs of Compute Engine",
            "provisioning_timeout",
        ),
        ("type: v2-8, kind: node, slices: 2", "Not for TPU nodes", "tpu.slices"),
        ("type: v3-8, slices: 2", "No slices of this generation", "newer type"),
        ("type: v6e-4, slices: 2, queue: {nodes: 2}", "Slices and independent nodes", "Remove one"),
    ],
)
def test_api_and_slice_problems(tmp_path: Path, text: str, summary: str, words: str) -> None:
    with pytest.raises(InvalidStack) as caught:
        load_stack(write(tmp_path, tpu(text)))
    (problem,) = caught.value.diagnostics
    assert problem.summary.startswith(summary)
    assert words in f"{problem.detail} {problem.hint}"
    assert problem.where.endswith("tpuctl.yaml:2")


def test_slices_share_zone_and_network(tmp_path: Path) -> None:
    """By construction: a stack has one zone in use, and one network."""
    stack = load_stack(write(tmp_path, tpu("type: v6e-16, api: compute, slices: 2")))
    assert stack.nodes == (f"{stack.name}-tpu-0", f"{stack.name}-tpu-1")
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project")
    groups = [each for each in resources_of(stack, cloud) if isinstance(each, TpuGroup)]
    assert [group.name for group in groups] == [*stack.nodes]
    assert len({(group.stack.zone, group.network.address) for group in groups}) == 1
    stack = load_stack(write(tmp_path, tpu("type: v6e-16, slices: 2")))
    assert stack.queue is not None
    assert len(stack.nodes) == 2


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n",
        "-----BEGIN OPENSSH PRIVATE KEY----- c2VjcmV0",
        base64.b64encode(b"-----BEGIN OPENSSH PRIVATE KEY-----c2VjcmV0").decode(),
        "ssh-ed25519 AAAAC3c2VjcmV0 ann@host",
        "c2VjcmV0" * 1000,
    ],
)
def test_key_instead_of_its_path_is_not_shown(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, MINIMAL + f"access: {{ssh_key: {json.dumps(key)}}}\n")
    with pytest.raises(InvalidStack, match="holds a key, not the path") as caught:
        load_stack(path)
    (problem,) = caught.value.diagnostics
    assert problem.where.endswith(":3")
    assert not [part for part in ("c2VjcmV0", "LS0t", "AAAAC3") if part in problem.text]


def test_texts_may_have_several_lines(tmp_path: Path) -> None:
    texts = "job: {setup: 'a\n\n  b', env: {A: \"a\\tb\\n\"}}\n"
    stack = load_stack(write(tmp_path, MINIMAL + texts))
    assert (stack.file.job.setup, stack.file.job.env["A"]) == ("a\nb", "a\tb\n")


@pytest.mark.parametrize(
    "notify",
    [
        "{url: https://hooks.slack.com/services/hush}",
        "{url: env}",
        "{url: [hush]}",
        "https://hooks.slack.com/services/hush",
        "[hush]",
    ],
)
def test_webhook_url_in_stack_file_is_rejected_and_not_echoed(tmp_path: Path, notify: str) -> None:
    with pytest.raises(InvalidStack) as caught:
        bert_stack(tmp_path, f"tpu: v5litepod-1\nnotify: {notify}")
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.summary == "Invalid webhook"
    assert diagnostic.where.endswith("tpuctl.yaml:4")
    assert "gcloud secrets create webhook --data-file=-" in diagnostic.hint
    assert "hush" not in repr(diagnostic)


def test_notify_section(tmp_path: Path) -> None:
    stack = bert_stack(tmp_path, "tpu: v5litepod-1\nnotify: {url: secret:hook@3, on: [failed]}")
    assert stack.secret_names == ("projects/my-project/secrets/hook",)
    assert stack.webhook is not None
    assert stack.webhook.reference == "projects/my-project/secrets/hook/versions/3"
    short = bert_stack(tmp_path, "tpu: v5litepod-1\nnotify: secret:hook")
    assert short.file.notify is not None
    assert (short.file.notify.url, len(short.file.notify.on)) == ("secret:hook", 7)
    with pytest.raises(InvalidStack) as caught:
        bert_stack(tmp_path, "tpu: v5litepod-1\nnotify: {url: secret:hook, on: [fail, done]}")
    assert [(problem.detail, problem.hint) for problem in caught.value.diagnostics] == [
        ("notify.on.0 cannot be 'fail'", "Did you mean failed?"),
        (
            "notify.on.1 cannot be 'done'",
            "Use 'granted', 'preempted', 'recovered', 'hung', 'ended', 'limit' or 'failed'.",
        ),
    ]
