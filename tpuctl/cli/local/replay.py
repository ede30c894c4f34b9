"""`tpuctl local replay`: ask the local cloud what recordings asked Google, and compare."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.state import State
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.emulator.replay.recordings import Recording
    from tpuctl.emulator.replay.replayer import ReplayedCall


def replay(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Recordings: HAR, VCR cassette, config-connector log, httpreplay, or transcript.",
            show_default=False,
        ),
    ],
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list the calls that were not compared.")
    ] = False,
) -> int:
    """Compare the local cloud's responses with recorded responses from Google.

    Each file is replayed against a separate, empty local cloud; yours is not
    affected. Exits with 1 if a response differs in its status, reason, text,
    fields, or constants.

    Example: tpuctl local replay session.har
    """
    from tpuctl.emulator.replay.recordings import read_recording

    state: State = context.obj
    recordings = [read_recording(file) for file in files]  # all, before the first is replayed
    replayed = [(recording, _replay(recording)) for recording in recordings]
    calls = [call for _, calls in replayed for call in calls]
    state.answer(
        lambda: responses.local.Replay(
            alike=sum(call.is_alike for call in calls),
            different=sum(bool(call.differences) for call in calls),
            skipped=sum(bool(call.skipped) for call in calls),
            calls=[
                responses.local.ReplayedCall.from_object(call, file=recording.path)
                for recording, calls in replayed
                for call in calls
            ],
        ),
        lambda: _show(replayed, shows_skipped=show_all),
    )
    return 1 if any(call.differences for call in calls) else 0


def _replay(recording: Recording) -> list[ReplayedCall]:
    from tpuctl.emulator.replay import replayer

    if sys.stderr.isatty():
        count = counted(len(recording.calls), "call")
        print(f"Replaying {count} of {recording.path} ({recording.format}) …", file=sys.stderr)
    return replayer.replay(recording)


def _show(
    replayed: Sequence[tuple[Recording, Sequence[ReplayedCall]]], *, shows_skipped: bool
) -> None:
    from tpuctl.view.terminal.tables import print_table

    for recording, calls in replayed:
        rows = [
            (
                *(call.call.where, call.method, _kind(difference.kind, difference.path)),
                *(difference.recorded, difference.local),
            )
            for call in calls
            for difference in call.differences
        ]
        if rows:
            print_table(("call", "method", "differs in", "recorded", "local cloud"), rows)
        skipped = [(call.call.where, call.method, call.skipped) for call in calls if call.skipped]
        if shows_skipped and skipped:
            print_table(("call", "method", "not compared"), skipped)
        print(f"{recording.path}: {_summary(calls)}")


def _kind(kind: str, path: str) -> str:
    return f"{kind} {path}" if path else kind


def _summary(calls: Sequence[ReplayedCall]) -> str:
    compared = [call for call in calls if not call.skipped]
    alike = sum(call.is_alike for call in compared)
    share = f" ({alike / len(compared):.0%})" if compared else ""
    text = f"{alike} of {counted(len(compared), 'compared call')} alike{share}"
    reasons = Counter(call.skipped for call in calls if call.skipped)
    skipped = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"{text}; not compared: {skipped}" if skipped else text
