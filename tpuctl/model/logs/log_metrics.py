"""Metrics in a job's log, as the usual training loops and libraries print them.

Read are lines of JSON, Python's dictionaries (Hugging Face), the progress of Keras, tqdm and
Lightning, and text such as `step 10 loss 3.58`. Other text is not: a number next to the word
"loss" counts only as a value by itself, in a line that tells a step or an epoch, or begins with it.

Logs are foreign text: lines are bounded, and what does not match exactly is no metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MAX_LINE_BYTES = 1 << 16  # bytes; longer lines are ignored
MAX_TEXT = 4000  # characters of a line that is not JSON
MAX_VALUES = 100  # of a line
MAX_POSITION = 10**15

Unit = Literal["step", "epoch", "line"]  # what positions count

LINE_END = re.compile(rb"[\r\n\b]+")  # a progress bar goes back to redraw its line
ESCAPES = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
MAY_HAVE_METRICS = re.compile(rb"loss|epoch|^\s*\{", re.IGNORECASE)

NUMBER = r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?|[+-]?(?:nan|inf)"
NAME = r"[A-Za-z_][\w./-]{0,60}"
METRIC = (
    r"(?:(?:train|training|val|valid|validation|eval|evaluation|test|held[-_ ]out|lm|mlm|nsp|total|"
    r"mean|avg|average|running|batch|epoch)[ _])?(?:[A-Za-z]{1,20}[_/]){0,3}"
    r"(?:loss|acc|accuracy|ppl|perplexity|mae|mse|rmse|auc|f1|lr|learning rate|learning_rate|"
    r"grad(?:ient)?[ _]norm)(?:_(?:step|epoch|[A-Za-z]))?"
)
# What ends a value in a sentence: punctuation, a gap, or another pair; never a unit or "of".
VALUE_END = (
    r"(?![\w%]|\.\d|\s*%)(?=\.?\s*$|\s*[,;|()\[\]]|\s+-+\s|\s{2}|\t|"
    r"\s+(?:at|after)\s+(?:step|epoch)|"
    r"\s+(?!(?:of|in|out|to|from|by|than|times|per|and|or)\b)"
    r"[A-Za-z][\w/]{0,30}\s?[ :=]\s?[-+.\d\[])"
)
SENTENCE_PAIR = re.compile(
    rf"(?<![\w./-])({METRIC})(?:\s{{0,8}}[:=]\s{{0,8}}|\s{{1,8}})({NUMBER}){VALUE_END}",
    re.IGNORECASE,
)
LOSS_AT = re.compile(  # Training loss (for 1 batch) at step 100: 0.4523
    rf"(?<![\w./-])({METRIC})(?:\s\([^()]{{0,40}}\))?\s(?:at|after)\s(?:step|epoch|iteration)"
    rf"\s\d{{1,15}}\s?[:=]\s?({NUMBER}){VALUE_END}",
    re.IGNORECASE,
)
SPEED = re.compile(
    r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d{1,15}(?:\.\d{1,9})?) tok(?:en)?s?/s(?:ec)?\b"
)
STEP = re.compile(
    r"(?<![\w./-])(?:global[ _])?(?:step|iter|iteration|update)\b"
    r"\s{0,8}[#:=]?\s{0,8}\[?\s{0,8}(\d{1,15})(?:\s{0,8}/\s{0,8}(\d{1,15}))?(?![\w%]|\.\d)",
    re.IGNORECASE,
)
EPOCH = re.compile(
    r"(?<![\w./-])epoch\b\s{0,8}[#:=]?\s{0,8}\[?\s{0,8}(\d{1,9}(?:\.\d{1,9})?)"
    r"(?:\s{0,8}/\s{0,8}\d{1,9})?(?![\w%])",
    re.IGNORECASE,
)
SHARE = re.compile(r"\[\s{0,8}(\d{1,15})\s?/\s?(\d{1,15})\b")  # [640/60000 (1%)]
# Before a line that begins with its loss: times, levels and names of loggers.
LINE_START = re.compile(r"[\W\d]{0,40}(?:[A-Z]{4,8}\W{1,3}(?:[\w.]{1,60}:\s?)?)?")

DICTIONARY = re.compile(r"\{'[^{}]*\}")
DICTIONARY_PAIR = re.compile(rf"'([^'\\]{{1,60}})':\s?('?)({NUMBER})\2(?=[,}}])")
KERAS = re.compile(r"\s*(\d{1,15})/(\d{1,15}|Unknown)\s")
KERAS_PAIR = re.compile(rf"\s-\s({NAME}):\s({NUMBER})(?=\s-\s|\s*$)")
TQDM = re.compile(r"(?:\s|\||^)(\d{1,15})/(\d{1,15})\s\[\d[\d:]*<[^\]]{1,40}")
TQDM_PAIR = re.compile(rf",\s({NAME})=({NUMBER})(?=[,\]\s]|$)")
RICH_BAR = re.compile(r"━\s+(\d{1,15})/(\d{1,15})\s")
RICH_PAIR = re.compile(rf"\s({NAME}):\s({NUMBER})(?=\s|$)")

STEP_NAMES = ("step", "global_step", "trainer/global_step", "iteration", "iter")
NOT_METRICS = {*STEP_NAMES, "epoch", "v_num", "batch_idx", "gpu"}
OTHER_LOSSES = {"packet", "packets", "data", "weight", "power", "memory", "connection", "signal"}
# Names of the loss that is minimized, the best known first.
LOSSES = (
    *("loss", "train_loss", "training_loss", "train/loss", "train_loss_step", "train_loss_epoch"),
    *("lm_loss", "mlm_loss", "total_loss", "mean_loss", "avg_loss", "average_loss"),
    *("running_loss", "batch_loss", "epoch_loss"),
)


@dataclass(frozen=True)
class Point:
    """Metrics of a line, and where in the run they belong.

    Without a step or an epoch, `position` is the number of such lines so far, and `unit` "line".
    A `position` of None is unknown.
    """

    unit: Unit
    position: float | None
    values: Mapping[str, float]


def training_loss(names: Mapping[str, Any]) -> str | None:
    """Which of these names is the training's loss; None if none is."""
    return next((name for name in LOSSES if name in names), None)


class MetricReader:
    """Reads a log that is fed in chunks, in constant memory.

    `is_whole` tells whether the log is fed from its beginning; otherwise an epoch may have begun
    before, so that the steps of a bar that counts from zero in each epoch are unknown.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._rest = b""
        self._lines = 0  # that have metrics, but no position
        self._counts_from_zero = False  # epochs
        self._begins_again: bool | None = None  # the step that text tells next to the epoch
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._epoch: int | None = None
        self._bar: tuple[int | None, int, int] | None = None  # epoch, steps done and in total
        self._last_step = 0
        self._step = 0  # before the epochs that are counted now
        self._text_step: tuple[float, int] | None = None  # the last epoch and step in text

    def feed(self, data: bytes) -> Iterator[Point]:
        """The points of the lines that end in the next bytes of the log."""
        *lines, self._rest = LINE_END.split(self._rest + data)
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b"\0" * (MAX_LINE_BYTES + 1)  # has no metrics
        for line in lines:
            yield from self._points(line)

    def end(self) -> Iterator[Point]:
        """End of an attempt's log: the points of a last line without a newline."""
        yield from self._points(self._rest)
        self._rest = b""
        self._begin_attempt()

    def _points(self, line: bytes) -> Iterator[Point]:
        if len(line) > MAX_LINE_BYTES or not MAY_HAVE_METRICS.search(line):
            return
        stripped = ESCAPES.sub(b"", line).strip()
        if stripped.startswith(b"{") and stripped.endswith(b"}"):
            try:
                record = json.loads(stripped)
            except (ValueError, RecursionError):
                pass
            else:
                yield from self._record(record)
                return
        text = stripped[:MAX_TEXT].decode("utf-8", "replace")
        if dictionary := DICTIONARY.search(text):
            pairs = DICTIONARY_PAIR.finditer(dictionary[0])
            yield from self._record({pair[1]: float(pair[3]) for pair in pairs})
        elif bar := TQDM.search(text):
            yield from self._bar_point(text, bar, TQDM_PAIR)
        elif (bar := KERAS.match(text)) and KERAS_PAIR.search(text):
            yield from self._bar_point(text, bar, KERAS_PAIR)
        elif bar := RICH_BAR.search(text):
            yield from self._bar_point(text, bar, RICH_PAIR)
        else:
            yield from self._sentence(text)

    # Objects ---------------------------------------------------------------------------------

    def _record(self, record: Mapping[str, Any]) -> Iterator[Point]:
        """Of a line that is an object: every number in it."""
        numbers = {name: _float(value) for name, value in [*record.items()][:MAX_VALUES]}
        values = {
            name: value
            for name, value in numbers.items()
            if value is not None and name not in NOT_METRICS
        }
        step = next((numbers[name] for name in STEP_NAMES if numbers.get(name) is not None), None)
        if step is not None and step.is_integer() and abs(step) < MAX_POSITION:
            yield Point("step", int(step), values)
        elif training_loss(values) or any(name.endswith("loss") for name in values):
            epoch = numbers.get("epoch")
            if epoch is not None and abs(epoch) < MAX_POSITION:
                yield Point("epoch", epoch, values)
            else:
                yield self._line_point(values)

    # Bars ------------------------------------------------------------------------------------

    def _bar_point(
        self, text: str, bar: re.Match[str], pair_pattern: re.Pattern[str]
    ) -> Iterator[Point]:
        pairs = pair_pattern.finditer(text, bar.start())
        values = {pair[1]: float(pair[2]) for pair in pairs if pair[1] not in NOT_METRICS}
        if epoch := EPOCH.match(text[: bar.start()].lstrip()):
            self._begin_epoch(epoch)
        if not any("loss" in name.lower() for name in values):
            return
        if not bar[2].isdecimal():  # a dataset of unknown length
            yield self._line_point(values)
            return
        if self._is_training(done := int(bar[1]), total := int(bar[2])):
            is_keras = pair_pattern is KERAS_PAIR
            yield Point("step", self._step_of_bar(done, total, is_keras=is_keras), values)

    def _begin_epoch(self, epoch: re.Match[str]) -> None:
        number = float(epoch[1])
        if number.is_integer():
            if self._epoch is None or number < self._epoch:  # another training begins
                self._step, self._bar = self._last_step, None
            self._epoch = int(number)
            self._counts_from_zero |= number == 0

    def _is_training(self, done: int, total: int) -> bool:
        """Whether a bar is not that of an evaluation: those have another total, or begin again
        within the same epoch."""
        if self._bar is None:
            return True
        epoch, last_done, last_total = self._bar
        return total == last_total and (epoch is None or epoch != self._epoch or done >= last_done)

    def _step_of_bar(self, done: int, total: int, *, is_keras: bool) -> int | None:
        """The step over all epochs, if known; only Keras always tells the epoch."""
        if self._bar is not None and self._epoch is None and done < self._bar[1]:
            self._step += self._bar[1]  # the next epoch's bar
        self._bar = self._epoch, done, total
        if self._epoch is not None:
            done += (self._epoch - (not self._counts_from_zero)) * total
        elif is_keras and not self._is_whole:
            return None
        self._last_step = self._step + done
        return self._last_step

    # Text ------------------------------------------------------------------------------------

    def _sentence(self, text: str) -> Iterator[Point]:
        epoch, step = EPOCH.search(text), STEP.search(text)
        pairs = [*SENTENCE_PAIR.finditer(text), *LOSS_AT.finditer(text)][:MAX_VALUES]
        values: dict[str, float] = {}
        for pair in pairs:
            words_before = text[max(0, pair.start() - 30) : pair.start()].lower().split()
            if words_before and words_before[-1] in OTHER_LOSSES:
                return
            values.setdefault(re.sub(r"[ -]+", "_", pair[1].lower()), float(pair[2]))
        if not any("loss" in name for name in values):
            if epoch and epoch.end() == len(text) and not text[: epoch.start()].strip():
                self._begin_epoch(epoch)  # Keras: a line before the bars
            return
        if speed := SPEED.search(text):
            values["tokens_per_second"] = float(speed[1].replace(",", ""))
        if step and (position := self._step_of_text(epoch, step)) is not None:
            yield Point("step", position, values)
        elif epoch:
            passed = float(epoch[1])
            if (share := SHARE.search(text, epoch.end())) and 0 < int(share[2]) >= int(share[1]):
                self._begin_epoch(epoch)
                passed += int(share[1]) / int(share[2]) - (not self._counts_from_zero)
            yield Point("epoch", passed, values)
        elif (start := LINE_START.match(text)) and pairs[0].start() <= start.end():
            yield self._line_point(values)

    def _step_of_text(self, epoch: re.Match[str] | None, step: re.Match[str]) -> int | None:
        """The step over all epochs; those that a line tells next to its epoch may begin again in
        each. That shows in the second epoch; None if it is not known."""
        done, total = int(step[1]), int(step[2] or 0)
        if epoch is None or not float(epoch[1]).is_integer():
            return done
        number = int(float(epoch[1]))
        self._counts_from_zero |= number == 0
        epochs_before = number - (not self._counts_from_zero)
        if self._text_step is not None and number > self._text_step[0]:
            self._begins_again = done <= self._text_step[1]
            if self._begins_again:
                self._step += self._text_step[1]
        is_first = self._text_step is None and epochs_before > 0
        self._text_step = number, done
        if self._begins_again and total:
            return epochs_before * total + done
        if self._begins_again is None and is_first:
            self._text_step = None
            return None
        return self._step + done if self._begins_again else done

    def _line_point(self, values: Mapping[str, float]) -> Point:
        self._lines += 1
        return Point("line", self._lines if self._is_whole else None, values)


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
