"""The memory of a TPU that a step of the bundled job uses, by the TPU's compiler, without a TPU.

    python tests/benchmarks/tpu_memory.py [--lengths 128 512] [--generations v2 v3 …]

Prints the table of docs/pretraining/speed.md, with the method of `tpuctl rehearse --compile`. A
compilation takes about half a minute on an idle machine, the whole table about half an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import Figure, sized
from tests.support.job_environment import JOB
from tpuctl.flows.preflight.compile import compile_script
from tpuctl.model.events import Event, StepFinished
from tpuctl.preflight.compile.compile_report import CompileReport

STEP = Path(__file__).with_name("programs") / "job_step.py"
SIZE = sized("base", "tiny")
LENGTHS = sized((128, 512), (128,))
# One core each: TensorFlow's device.
ALL_TYPES = {
    "v2": "v2-8",
    "v3": "v3-8",
    "v5e": "v5litepod-1",
    "v4": "v4-8",
    "v6e": "v6e-1",
    "v5p": "v5p-8",
}
TYPES = sized(ALL_TYPES, {"v2": ALL_TYPES["v2"]})
BATCH = sized(None, 64)  # over the eight replicas of a v2-8; None: search the largest


def row(generation: str, length: int) -> tuple[int, str, str]:
    """The largest batch of one core, its peak, and the refusal of the next.

    Without a search, which compiles several times, the only batch and its peak.
    """
    report: CompileReport = asyncio.run(
        compile_script(
            STEP,
            (SIZE, str(length)),
            None,
            on_event,
            type_name=TYPES[generation],
            batch=BATCH,
            variables={"PYTHONPATH": str(JOB), "TF_USE_LEGACY_KERAS": "1"},
        )
    )
    assert report.requested is not None, report.refusal
    answers = {answer.batch: answer for answer in (report.requested, *report.alternatives)}
    largest, refusal = report.requested.batch or 0, ""
    if BATCH is None:
        assert report.largest_batch is not None, report.refusal
        largest = report.largest_batch
        refusal = answers[max(1, 2 * largest)].shortfall
    fitting = answers.get(largest)
    size = "" if fitting is None or fitting.sizes is None else f"{fitting.sizes.peak / 1e9:.1f} GB"
    return largest, size, refusal


def on_event(event: Event) -> None:
    if isinstance(event, StepFinished):
        print(f"{event.address}: {event.because or event.outcome.value}", file=sys.stderr)


def memory() -> Iterator[Figure]:
    """Return the table as lines of the report."""
    for length in LENGTHS:
        for generation in TYPES:
            batch, peak, refused = row(generation, length)
            yield Figure(
                f"{SIZE}, {generation}, sequences of {length}: most a core",
                f"{batch} sequences, {peak}",
                f"{2 * batch} refused: {refused}" if refused else "",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--generations", nargs="+", choices=TYPES, default=tuple(TYPES))
    arguments = parser.parse_args()
    print("| generation | length | batch per core | peak | twice as many |\n|---|---|---|---|---|")
    for length in arguments.lengths:
        for generation in arguments.generations:
            batch, peak, refused = row(generation, length)
            cells = (generation, length, batch, peak, f"refused: {refused}")
            print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
