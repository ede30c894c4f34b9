"""The report of a compilation for the TPU, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpuctl.units import decimal_size

if TYPE_CHECKING:
    from tpuctl.preflight.compile.compile_report import (
        BatchResult,
        Collective,
        CompileReport,
        Refusal,
    )

MAX_MESSAGE_LINES = 12  # of the compiler's message
MAX_LINE_LENGTH = 300
VERDICTS = {
    "script": "the step failed while it was traced",
    "compiler": "the TPU compiler rejects the step",
    "tpuctl": "tpuctl cannot compile the step, but a TPU may run it",
}


def report_lines(report: CompileReport) -> list[str]:
    """The report: the step, its batch size and memory, and what is not included."""
    return list(_lines(report))


def _lines(report: CompileReport) -> Iterator[str]:
    slices = f"{report.slices} × " if report.slices > 1 else ""
    yield f"{report.script} on {slices}{report.type}: {_verdict(report)}"
    yield ""
    if report.function:
        where = f" ({report.where})" if report.where is not None else ""
        kind = "bfloat16 within" if report.has_bfloat16 else "no bfloat16"
        yield f"  step      {report.function}{where}, {kind if report.requested else 'not lowered'}"
    if report.refusal is not None:
        yield from _refusal_lines(report.refusal)
    if report.requested is not None:
        yield from _size_lines(report, report.requested)
    if report.largest_batch is not None:
        yield f"  largest   {_largest(report)}"
    if report.dynamic_dimensions:
        yield (
            f"  cost      {report.dynamic_dimensions} dimensions are dynamic (bounded): "
            "slower, and uses more memory"
        )
    if report.collectives:
        yield f"  network   {', '.join(map(_collective, report.collectives))} per step and device"
    yield f"  with      {_versions(report)}"
    for note in report.notes:
        yield f"  note      {note}"
    if report.requested is not None and report.replicas > 1 and report.jax is None:
        yield (
            f"  excluded  the sum of gradients over {report.replicas} replicas: leave a few "
            "hundred megabytes"
        )


def _collective(collective: Collective) -> str:
    name = collective.operation + (" to other slices" if collective.operation == "send" else "")
    return f"{collective.count} {name} ({decimal_size(collective.bytes)})"


def _unit(report: CompileReport) -> str:
    """What figures are for. A device of JAX is a core, or a whole chip of v4 to v6e."""
    return "core" if report.tensorflow is not None else "device"


def _versions(report: CompileReport) -> str:
    if report.tensorflow is not None:
        return f"TensorFlow {report.tensorflow} for TPUs, one core of {report.generation}"
    versions = f"JAX {report.jax} and libtpu {report.libtpu}" if report.jax else "the job's JAX"
    slices = f"{report.slices} slices of topology" if report.slices > 1 else "topology"
    return f"{versions}, {slices} {report.topology}"


def _verdict(report: CompileReport) -> str:
    if report.refusal is not None:
        return VERDICTS[report.refusal.origin]
    assert report.requested is not None
    if report.requested.sizes is None:
        return (
            "not even one example fits" if report.largest_batch == 0 else "the batch does not fit"
        )
    return "it compiles and the batch fits"


def _refusal_lines(refusal: Refusal) -> Iterator[str]:
    lines = [line[:MAX_LINE_LENGTH] for line in refusal.message.strip().splitlines()]
    yield f"  rejected  {lines[0]}"
    for line in lines[1:MAX_MESSAGE_LINES]:
        yield f"            {line}"
    if not refusal.obstacles and refusal.where is not None:
        yield f"  where     {refusal.where}"
        yield f"            {refusal.where.text}"
    operations_by_line: dict[tuple[str, str], list[str]] = {}
    for obstacle in refusal.obstacles:
        text = f"\n            {obstacle.where.text}" if obstacle.where is not None else ""
        key = f"  {obstacle.where or 'in a library'}: ", text
        operations_by_line.setdefault(key, []).append(obstacle.operation)
    for (before, text), operations in operations_by_line.items():
        yield from f"{before}{', '.join(operations)}{text}".split("\n")


def _size_lines(report: CompileReport, result: BatchResult) -> Iterator[str]:
    batch = "as it is" if result.batch is None else _batch(report, result.batch)
    if result.sizes is None:
        yield f"  batch     {batch}: does not fit, {result.shortfall}"
        return
    available = (
        "" if report.available_bytes is None else f" of {decimal_size(report.available_bytes)}"
    )
    yield f"  batch     {batch}: {decimal_size(result.sizes.peak)}{available} per {_unit(report)}"
    yield (
        f"            variables {decimal_size(report.variable_bytes)}, temporary "
        f"{decimal_size(result.sizes.temporary)}, program {decimal_size(result.sizes.code)}"
    )


def _largest(report: CompileReport) -> str:
    assert report.largest_batch is not None
    if not report.largest_batch:
        return "not one example fits"
    at_least = "" if report.largest_is_exact else ", at least"
    results = [result for result in (report.requested, *report.alternatives) if result is not None]
    refused = next(
        (result.shortfall for result in results if result.batch == 2 * report.largest_batch), ""
    )
    after = f"; twice as many do not fit: {refused}" if refused else ""
    return f"{_batch(report, report.largest_batch)}{at_least} (powers of two){after}"


def _batch(report: CompileReport, batch: int) -> str:
    if report.replicas == 1:
        return f"{batch:,}"
    return f"{batch:,} per {_unit(report)}, {report.total_batch(batch):,} in total"
