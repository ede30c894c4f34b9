"""Parts of the job that need no TensorFlow: the schedule, options, replicas of slices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.http_server import serving_http


def test_predictions_are_15_percent_and_at_most_20(job: SimpleNamespace) -> None:
    lengths = {16: 3, 64: 10, 128: 20, 512: 20}
    assert {n: job.plan.default_predictions(n) for n in lengths} == lengths


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_learning_rate_warms_up_and_decays_to_zero(job: SimpleNamespace, decay: str) -> None:
    rate = job.schedule.learning_rate
    rates = [rate(step, 1.0, 10, 110, decay) for step in range(110)]
    assert rates[0] == pytest.approx(1 / 11)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.5)  # half-way down
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.02
    assert rate(110, 1.0, 10, 110, decay) == rate(200, 1.0, 10, 110, decay) == 0.0
    assert rate(0, 1.0, 0, 5, decay) == 1.0


def test_cosine_decays_slower_than_linear_at_first(job: SimpleNamespace) -> None:
    rate = job.schedule.learning_rate
    # A third of the way down: the cosine of 60 degrees is a half.
    assert rate(40, 1.0, 10, 100, "linear") == pytest.approx(2 / 3)
    assert rate(40, 1.0, 10, 100, "cosine") == pytest.approx(3 / 4)


def test_constant_rate_stays_at_the_peak(job: SimpleNamespace) -> None:
    rates = [job.schedule.learning_rate(step, 2.0, 3, 10, "constant") for step in range(20)]
    assert rates == [0.5, 1.0, 1.5] + [2.0] * 17


def test_documents_are_separated_by_empty_lines(job: SimpleNamespace) -> None:
    text = "\n하나\n  둘   셋\n\n \n넷\n"
    assert list(job.text.documents(text.splitlines())) == [["하나", "둘 셋"], ["넷"]]


def test_normalize_composes_syllables_only(job: SimpleNamespace) -> None:
    assert job.text.normalize("\u1112\u1161\u11ab") == "\ud55c"
    assert job.text.normalize("ㅋㅋ ㅎㅏ Ａ") == "ㅋㅋ ㅎㅏ Ａ"


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
    assert job.accelerators.replicas_of(accelerator_type) == replicas


@pytest.mark.parametrize("name", ["", "v2", "v9-8", "v2-", "v2-8-x", "n1-standard-1", "v4-1"])
def test_unknown_slices_are_rejected(job: SimpleNamespace, name: str) -> None:
    with pytest.raises(ValueError, match="unknown TPU type"):
        job.accelerators.replicas_of(name)


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
    assert job.accelerators.tpu_address(environment, chips) == address


def test_chips_are_detected_by_device_files(job: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert not job.accelerators.has_chips(tmp_path)
    (tmp_path / "accel0").touch()
    assert job.accelerators.has_chips(tmp_path)


class Metadata(BaseHTTPRequestHandler):
    """Responds like a machine's metadata server, which requires its header."""

    def do_GET(self) -> None:
        right = self.headers.get("Metadata-Flavor") == "Google"
        is_right_path = self.path == "/computeMetadata/v1/instance/attributes/accelerator-type"
        self.send_response(200 if right and is_right_path else 403)
        self.end_headers()
        self.wfile.write(b"v3-8\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    with serving_http(Metadata) as server:
        yield f"127.0.0.1:{server.server_port}"


def test_slice_type_comes_from_metadata_server(
    job: SimpleNamespace, metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be used
    assert job.accelerators.slice_type({"GCE_METADATA_HOST": metadata}) == "v3-8"
    assert job.accelerators.slice_type({"GCE_METADATA_HOST": "127.0.0.1:1"}) is None
    assert job.accelerators.slice_type({}) is None


def test_default_options_are_compatible(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_OUTPUT", "gs://bucket/out")
    options = job.options.parse([])
    for replicas in (1, 2, 4, 8, 16, 32):
        job.options.check(options, replicas)
    assert options.output == "gs://bucket/out"
    assert options.predictions == 10 and options.warmup_steps == options.steps // 10


@pytest.mark.parametrize(
    ("arguments", "replicas", "message"),
    [
        (["--batch", "30"], 8, "try 24 or 32"),
        (["--batch", "4"], 8, "try 8$"),
        (["--sequence-length", "8", "--predictions", "1"], 1, "at least 16"),
        (["--predictions", "63"], 1, "does not fit"),
        (["--steps", "5", "--warmup-steps", "5"], 1, "fewer than --steps"),
        (["--vocabulary-size", "50"], 1, "at least 100"),
    ],
)
def test_incompatible_options_are_rejected(
    job: SimpleNamespace, arguments: list[str], replicas: int, message: str
) -> None:
    with pytest.raises(job.errors.JobError, match=message) as caught:
        job.options.check(job.options.parse(arguments), replicas)
    assert caught.value.exit_code == 2


def test_fingerprint_depends_on_values_only(job: SimpleNamespace) -> None:
    fingerprint = job.text.fingerprint("records", {"a": 1, "b": [2.5]})
    assert fingerprint == job.text.fingerprint("records", json.loads('{"b": [2.5], "a": 1}'))
    assert fingerprint != job.text.fingerprint("records", {"a": 1, "b": [2.6]})
    assert not math.isnan(int(fingerprint, 16))
