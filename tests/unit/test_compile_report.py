"""The report of a compilation, and its exit code."""

from __future__ import annotations

from dataclasses import replace

from tpuctl.preflight.compile.compile_report import (
    BatchResult,
    Collective,
    CompileReport,
    Obstacle,
    Refusal,
    Sizes,
    SourceLine,
)
from tpuctl.view.checks.compilation import report_lines
from tpuctl.view.responses.checks import Compilation

LINE = SourceLine("/home/u/train.py", 15, 'tf.print("loss", loss)')
FITS = BatchResult(32, Sizes(500_000_000, 0, 0, 2_000_000_000, 100_000_000), "", "", 20.0)
TOO_MUCH = BatchResult(64, None, "18.24G of 15.48G", "RESOURCE_EXHAUSTED: …", 20.0)
REPORT = CompileReport("train.py", "v3-8", "v3", 8, "2.18.0", "2.18.0", function="step")


def rendered(report: CompileReport) -> str:
    return "\n".join(report_lines(report))


def test_fitting_batch_is_reported_per_core_and_in_total() -> None:
    report = replace(
        REPORT,
        requested=FITS,
        alternatives=(TOO_MUCH,),
        largest_batch=32,
        largest_is_exact=True,
        available_bytes=16 << 30,
    )
    text = rendered(report)
    assert report.exit_code == 0
    assert "32 per core, 256 in total: 2.6 GB of 17.2 GB" in text
    assert "twice as many do not fit: 18.24G of 15.48G" in text
    assert "at least" not in text
    assert "sum of gradients over 8 replicas" in text


def test_oversized_batch_is_reported_with_largest() -> None:
    report = replace(
        REPORT, requested=TOO_MUCH, alternatives=(FITS,), largest_batch=32, largest_is_exact=True
    )
    text = rendered(report)
    assert report.exit_code == 1
    assert "64 per core, 512 in total: does not fit, 18.24G of 15.48G" in text
    assert "32 per core, 256 in total" in text
    # An untested larger batch may fit.
    report = replace(REPORT, requested=FITS, largest_batch=1 << 16)
    assert "65,536 per core, 524,288 in total, at least" in rendered(report)


def test_costs_and_sums_are_reported_where_they_are() -> None:
    text = rendered(replace(REPORT, replicas=1, type="v5litepod-1", requested=FITS))
    assert "in all" not in text
    assert "gradients" not in text
    assert "108 dimensions are dynamic" in rendered(
        replace(REPORT, requested=FITS, dynamic_dimensions=108)
    )


def test_obstacles_are_reported_once_per_line() -> None:
    obstacles = (Obstacle("PrintV2", LINE), Obstacle("StringFormat", LINE), Obstacle("Where", None))
    refusal = Refusal("A TPU has no operation …", "compiler", LINE, obstacles)
    report = replace(REPORT, refusal=refusal)
    text = rendered(report)
    assert report.exit_code == 1
    assert "/home/u/train.py:15: PrintV2, StringFormat" in text
    assert text.count('tf.print("loss", loss)') == 1
    assert "in a library: Where" in text
    assert "the TPU compiler rejects the step" in text
    # Limitations of tpuctl do not blame the script.
    refusal = Refusal("ResourceApplyFtrl uses a variable …", "tpuctl", LINE)
    assert "but a TPU may run it" in rendered(replace(REPORT, refusal=refusal))


def test_json_has_peak_and_both_batches() -> None:
    report = replace(REPORT, requested=FITS, largest_batch=128)
    plain = Compilation.model_validate(report).as_json()
    assert plain["requested"]["peak"] == 2_600_000_000
    assert (plain["batch_per_core"], plain["batch"]) == (32, 256)
    assert plain["largest_total_batch"] == 1024


def test_jax_report_has_versions_and_collectives_of_the_topology() -> None:
    report = replace(
        REPORT,
        tensorflow=None,
        topology="2x2",
        slices=2,
        jax="0.10.2",
        libtpu="0.0.42.1",
        requested=FITS,
        collectives=(Collective("all-reduce", 2, 4_200_000), Collective("send", 1, 65_536)),
    )
    text = rendered(report)
    network = "2 all-reduce (4.2 MB), 1 send to other slices (65.5 kB) per step and device"
    assert text.startswith("train.py on 2 × v3-8: ")
    assert "32 per device, 256 in total: 2.6 GB per device" in text
    assert f"network   {network}" in text
    assert "with      JAX 0.10.2 and libtpu 0.0.42.1, 2 slices of topology 2x2" in text
    assert "sum of gradients" not in text  # is among the collectives
    answer = Compilation.model_validate(report).model_dump(mode="json")
    first = {"operation": "all-reduce", "count": 2, "bytes": 4_200_000}
    assert (answer["collectives"][0], answer["topology"], answer["slices"]) == (first, "2x2", 2)
