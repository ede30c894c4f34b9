"""Parts of the job that need no TensorFlow: text, options, replicas of slices, memory."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.http_server import QuietHandler, serving_http


def test_documents_are_separated_by_empty_lines(job: SimpleNamespace) -> None:
    text = "\n하나\n  둘   셋\n\n \n넷\n"
    skipped: Counter[str] = Counter()
    assert list(job.vocabulary.documents(text.splitlines(), skipped)) == [["하나", "둘 셋"], ["넷"]]
    assert not skipped


def test_normalize_composes_syllables_only(job: SimpleNamespace) -> None:
    assert job.vocabulary.normalize("\u1112\u1161\u11ab") == "\ud55c"
    assert job.vocabulary.normalize("ㅋㅋ ㅎㅏ Ａ") == "ㅋㅋ ㅎㅏ Ａ"


@pytest.mark.parametrize(
    ("accelerator_type", "replicas"),
    [
        ("v2-8", 8),
        ("v3-32", 32),
        ("v4-8", 4),
        ("v5p-16", 8),
        ("v5litepod-4", 4),
        ("v6e-8", 8),
    ],
)
def test_replicas_of_slices(job: SimpleNamespace, accelerator_type: str, replicas: int) -> None:
    assert job.devices.replicas_of(accelerator_type) == replicas


@pytest.mark.parametrize("name", ["", "v2", "v9-8", "v2-", "v2-8-x", "n1-standard-1", "v4-1"])
def test_unknown_slices_are_rejected(job: SimpleNamespace, name: str) -> None:
    with pytest.raises(ValueError, match="unknown TPU type"):
        job.devices.replicas_of(name)


@pytest.mark.parametrize(
    ("environment", "chips", "address"),
    [
        ({}, False, None),
        ({}, True, "local"),
        ({"TPU_NAME": "local"}, True, "local"),
        ({"TPU_NAME": "local"}, False, None),
        ({"TPU_NAME": "my-node"}, False, "my-node"),
        ({"TPU_NAME": "my-node"}, True, "my-node"),
        ({"TPU_NAME": "my-node", "TPUCTL_CLOUD": "local"}, False, None),
    ],
)
def test_tpu_address(
    job: SimpleNamespace, environment: dict[str, str], chips: bool, address: str | None
) -> None:
    assert job.devices.tpu_address(environment, chips) == address


def test_chips_are_detected_by_device_files(job: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert not job.devices.has_chips(tmp_path)
    (tmp_path / "accel0").touch()
    assert job.devices.has_chips(tmp_path)


class Metadata(QuietHandler):
    """Responds like a machine's metadata server, which requires its header."""

    def do_GET(self) -> None:
        right = self.headers.get("Metadata-Flavor") == "Google"
        is_right_path = self.path == "/computeMetadata/v1/instance/attributes/accelerator-type"
        self.send_response(200 if right and is_right_path else 403)
        self.end_headers()
        self.wfile.write(b"v3-8\n")


@pytest.fixture
def metadata() -> Iterator[str]:
    with serving_http(Metadata) as server:
        yield f"127.0.0.1:{server.server_port}"


def test_slice_type_comes_from_metadata_server(
    job: SimpleNamespace, metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be used
    assert job.machine.slice_type({"GCE_METADATA_HOST": metadata}) == "v3-8"
    assert job.machine.slice_type({"GCE_METADATA_HOST": "127.0.0.1:1"}) is None
    assert job.machine.slice_type({}) is None


def test_default_options_are_compatible(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_OUTPUT", "gs://bucket/out")
    options = job.pretrain.parse([])
    for replicas in (1, 2, 4, 8, 16, 32):
        job.pretrain.check(options, replicas)
    assert options.output == "gs://bucket/out"
    assert (options.dropout, options.warmup_steps) == (0.0, options.steps // 10)
    assert job.pretrain.parse(["--size", "mini"]).dropout == 0.1


@pytest.mark.parametrize(
    ("arguments", "replicas", "message"),
    [
        (["--batch", "30"], 8, "try 24 or 32"),
        (["--batch", "4"], 8, "try 8$"),
        (["--steps", "5", "--warmup-steps", "5"], 1, "fewer than --steps"),
    ],
)
def test_incompatible_options_are_rejected(
    job: SimpleNamespace, arguments: list[str], replicas: int, message: str
) -> None:
    with pytest.raises(job.files.JobError, match=message) as caught:
        job.pretrain.check(job.pretrain.parse(arguments), replicas)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sequence-length", "8"], "must be at least 16"),
        (["--vocabulary-size", "50"], "must be at least 100 and below 65,537"),
        (["--held-out", "1"], "must be at least 0 and below 1"),
        (["--batch", "0"], "must be at least 1"),
        (["--batch", "many"], "invalid"),
        (["--optimizer", "sgd"], "invalid choice"),
    ],
)
def test_invalid_options_are_rejected(
    job: SimpleNamespace,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit:
        job.pretrain.parse(arguments)
    assert exit.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert arguments[0] in last and message in last


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: 8.29G > 7.48G",  # the TPU compiler of TensorFlow 2.19
        # github.com/tensorflow/tpu/issues/385
        "Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory "
        "space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by 385.25M.",
        "ResourceExhaustedError: Graph execution error:\n\nOOM when allocating tensor with shape"
        "[512,128,768] and type float on /job:localhost/replica:0/task:0/device:GPU:0",
    ],
    ids=["v2", "old", "gpu"],
)
def test_out_of_memory_suggests_smaller_parts(job: SimpleNamespace, text: str) -> None:
    message = str(job.devices.explain_memory(text, batch=64, share=32, parts=1))
    assert message.startswith("not enough memory for --batch 64 (") and "\n" not in message
    line = next(
        line.strip() for line in text.splitlines() if line.strip() and line.strip() in message
    )
    assert "memory" in line or "RESOURCE" in line or "OOM" in line  # signatures of `tpuctl explain`
    assert "--batch 32 or --accumulation 2 may fit" in message
    message = str(job.devices.explain_memory(text, batch=64, share=12, parts=3))
    assert "--accumulation 6 may fit" in message, "the next divisor of 12 from twice 3 on"
    message = str(job.devices.explain_memory(text, batch=2, share=1, parts=1))
    assert message.endswith("not even one sequence fits: use a smaller --size or --sequence-length")


def test_other_errors_are_not_out_of_memory(job: SimpleNamespace) -> None:
    text = "InvalidArgumentError: logits and labels must have the same first dimension"
    assert job.devices.explain_memory(text, batch=8, share=8, parts=1) is None


def test_fingerprint_depends_on_values_only(job: SimpleNamespace) -> None:
    fingerprint = job.vocabulary.fingerprint("records", {"a": 1, "b": [2.5]})
    assert fingerprint == job.vocabulary.fingerprint("records", json.loads('{"b": [2.5], "a": 1}'))
    assert fingerprint != job.vocabulary.fingerprint("records", {"a": 1, "b": [2.6]})
    assert not math.isnan(int(fingerprint, 16))
