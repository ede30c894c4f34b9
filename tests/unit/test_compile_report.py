"""How a compilation is told, and with what exit code."""

from __future__ import annotations

import json
from dataclasses import replace

from tpuctl.preflight.compile.compile_report import (
    Answer,
    CompileReport,
    Obstacle,
    Refusal,
    Sizes,
    SourceLine,
)
from tpuctl.view.compilation import report_lines

LINE = SourceLine("/home/u/train.py", 15, 'tf.print("loss", loss)')
FITS = Answer(32, Sizes(500_000_000, 0, 0, 2_000_000_000, 100_000_000), "", "", 20.0)
TOO_MUCH = Answer(64, None, "18.24G of 15.48G", "RESOURCE_EXHAUSTED: …", 20.0)
REPORT = CompileReport("train.py", "v3-8", "v3", 8, "2.18.0", "2.18.0", function="step")


def told(report: CompileReport) -> str:
    return "\n".join(report_lines(report))


def test_a_batch_that_fits_is_told_for_one_core_and_in_all() -> None:
    report = replace(
        REPORT,
        requested=FITS,
        alternatives=(TOO_MUCH,),
        largest_batch=32,
        largest_is_exact=True,
        available_bytes=16 << 30,
    )
    text = told(report)
    assert report.exit_code == 0
    assert "32 a core, 256 in all: 2.60 GB of 17.2 GB" in text
    assert "twice as many: 18.24G of 15.48G" in text
    assert "at least" not in text
    assert "sum of gradients over 8 replicas" in text


def test_a_batch_that_does_not_fit_is_told_with_the_one_that_does() -> None:
    report = replace(
        REPORT, requested=TOO_MUCH, alternatives=(FITS,), largest_batch=32, largest_is_exact=True
    )
    text = told(report)
    assert report.exit_code == 1
    assert "64 a core, 512 in all: refused, 18.24G of 15.48G" in text
    assert "32 a core, 256 in all" in text


def test_where_the_next_was_not_asked_about_more_may_fit() -> None:
    report = replace(REPORT, requested=FITS, largest_batch=1 << 16)
    assert "65,536 a core, 524,288 in all, at least" in told(report)


def test_one_core_has_no_sum_of_gradients_and_no_batch_in_all() -> None:
    text = told(replace(REPORT, replicas=1, type="v5litepod-1", requested=FITS))
    assert "in all" not in text
    assert "gradients" not in text


def test_all_that_stands_in_the_way_is_told_once_for_each_line() -> None:
    obstacles = (Obstacle("PrintV2", LINE), Obstacle("StringFormat", LINE), Obstacle("Where", None))
    refusal = Refusal("A TPU has no operation …", "compiler", LINE, obstacles)
    report = replace(REPORT, refusal=refusal)
    text = told(report)
    assert report.exit_code == 1
    assert "/home/u/train.py:15: PrintV2, StringFormat" in text
    assert text.count('tf.print("loss", loss)') == 1
    assert "in a library: Where" in text
    assert "the TPU compiler rejects the step" in text


def test_what_tpuctl_cannot_hand_over_is_not_called_the_scripts_fault() -> None:
    refusal = Refusal("ResourceApplyFtrl uses a variable …", "tpuctl", LINE)
    assert "but a TPU may run it" in told(replace(REPORT, refusal=refusal))


def test_bounds_in_place_of_sizes_are_a_cost() -> None:
    assert "108 dimensions are dynamic" in told(
        replace(REPORT, requested=FITS, dynamic_dimensions=108)
    )


def test_what_programs_read_has_the_peak_and_both_batches() -> None:
    plain = json.loads(json.dumps(replace(REPORT, requested=FITS, largest_batch=128).as_dict()))
    assert plain["requested"]["peak"] == 2_600_000_000
    assert (plain["batch_per_core"], plain["batch"]) == (32, 256)
    assert plain["largest_total_batch"] == 1024
