"""Forecasts of a hunt, and how true they were, on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tpuctl.model.capacity.forecast import SAVE_SECONDS, Forecast, Range
from tpuctl.model.jobs.report import ForecastOutcome, OutcomeName
from tpuctl.units import counted, dollars, format_duration
from tpuctl.view.stack.cost import on_google
from tpuctl.view.terminal.tables import print_facts
from tpuctl.view.terminal.text_wrapping import print_wrapped

_TEXTS: Mapping[OutcomeName, tuple[str, Callable[[float], str]]] = {
    "wait": ("wait for a TPU", format_duration),
    "preemptions": ("preemptions", "{:.0f}".format),
    "duration": ("done after", format_duration),
    "cost": ("cost", dollars),
}


def show_forecast(forecast: Forecast, *, is_free: bool) -> None:
    """A line for each range, and what the forecast is based on."""
    print(f"\nForecast for {forecast.hours:g} h of work:")
    facts = [(name, text) for name, text in _facts(forecast, is_free=is_free) if text]
    if facts:
        print_facts(facts)
    print_wrapped(" ".join(_basis(forecast)))


def outcome_rows(outcomes: Iterable[ForecastOutcome]) -> list[tuple[str, str, str]]:
    """What was forecast, its range, and what it was."""
    rows = []
    for outcome in outcomes:
        name, text_of = _TEXTS[outcome.name]
        remark = "" if outcome.is_within else " (outside)"
        values = Range(outcome.low, outcome.high)
        rows.append((name, _range_text(values, text_of), f"{text_of(outcome.actual)}{remark}"))
    return rows


def _facts(forecast: Forecast, *, is_free: bool) -> Iterator[tuple[str, str]]:
    ranges: Mapping[OutcomeName, Range | None] = {
        "wait": forecast.wait,
        "preemptions": forecast.preemptions,
        "duration": forecast.duration,
        "cost": forecast.cost,
    }
    for key, values in ranges.items():
        name, text_of = _TEXTS[key]
        yield on_google(name, is_free=is_free and key == "cost"), _range_text(values, text_of)
    yield "earlier waits", _range_text(forecast.past_wait, format_duration)
    interval = _range_text(forecast.checkpoint, format_duration)
    if interval:
        yield "checkpoints", f"every {interval}, if one takes {format_duration(SAVE_SECONDS)}"


def _range_text(values: Range | None, text_of: Callable[[float], str]) -> str:
    """`5 min to 3 h`, or one value if both are the same; empty for none."""
    if values is None:
        return ""
    low, high = text_of(values.low), text_of(values.high)
    return low if low == high else f"{low} to {high}"


def _basis(forecast: Forecast) -> Iterator[str]:
    if forecast.starts:
        yield f"From {forecast.starts} starts in the trace, without a tenth at each end."
    if forecast.unfinished:
        yield f"After {forecast.unfinished} of them the trace ends before the work is done."
    if forecast.grants:
        yield f"Earlier waits are those of {counted(forecast.grants, 'TPU')} that you were granted."
    if not forecast.starts and not forecast.grants:
        yield "No earlier request for this TPU is known here. Give a trace: --trace FILE"
