"""What a stack's controller is doing, for those who look from elsewhere."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from tpuctl.model.events import Event, Note, StepProgress, StepStarted, WarningIssued
from tpuctl.model.text.names import ACTIVITIES
from tpuctl.model.text.record_parsing import Moment, Name, Text
from tpuctl.units import format_duration

MAX_LENGTH = 300


class Activity(BaseModel):
    """An object of the stack's bucket, which exists while a program works on the stack, or has
    failed to."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    by: Name
    at: Moment
    text: Text

    def sentence(self, now: datetime) -> str:
        """`bert-controller: create node/bert-tpu (12 s ago)`."""
        age = max(0.0, (now - self.at).total_seconds())
        return f"{self.by}: {self.text} ({format_duration(age)} ago)"


def activity_name(stack: str) -> str:
    """The object of a stack's activity."""
    return f"{ACTIVITIES}/{stack}.json"


def activity_of(event: Event) -> str:
    """What an event says of the work that goes on, in a line; empty if nothing."""
    match event:
        case Note(text):
            line = text.strip()
        case StepStarted(address, action):
            line = f"{action} {address}"
        case StepProgress(address, text):
            line = f"{address}: {text}"
        case WarningIssued(diagnostic):
            line = f"{diagnostic.summary}: {diagnostic.detail}"
        case _:
            line = ""
    return line.partition("\n")[0][:MAX_LENGTH]
