"""Parses the records of jobs and stacks, which others may have written: damaged, or hostile.

The types bound what a record can say, so that no reader meets a number that is not finite, a time
that no calendar has, or a text that does not end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from tpuctl.errors import Conflict, RemoteFailed

M = TypeVar("M", bound=BaseModel)
MAX_COUNT = 1_000_000
EARLIEST, LATEST = datetime(2015, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def _in_calendar(moment: datetime) -> datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError("has no time zone")
    if not EARLIEST <= moment < LATEST:
        raise ValueError(f"is not between {EARLIEST.year} and {LATEST.year}")
    return moment


Moment = Annotated[datetime, AfterValidator(_in_calendar)]
Text = Annotated[str, Field(max_length=1 << 20)]
Name = Annotated[str, Field(max_length=1024)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Index = Annotated[int, Field(ge=0, le=100_000)]  # of a worker
AttemptNumber = Annotated[int, Field(ge=1, le=MAX_COUNT)]
ByteCount = Annotated[int, Field(ge=0, lt=1 << 62)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]


def parse_record(kind: type[M], text: bytes, where: str, **expected: object) -> M:
    """Parse a record that `where` names. Raises Conflict if it is damaged, or if a field has
    another value than expected: its object has the name of another record."""
    try:
        record = kind.model_validate_json(text)
    except ValidationError as error:
        raise _damaged(where, _first_problem(error)) from error
    for name, value in expected.items():
        if getattr(record, name) != value:
            raise _damaged(where, f"{name}: is not {value}")
    return record


def parse_answer(kind: type[M], text: bytes, where: str) -> M:
    """Parse what a program on the machine that `where` names has answered. Raises RemoteFailed."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise RemoteFailed(
            "Unexpected answer of a machine",
            f"{where}: {_first_problem(error)}",
            hint="Its programs may have been changed. To replace the machine:\n"
            "    tpuctl down\n    tpuctl up",
        ) from error


def require_known_version(version: int, newest: int, where: str) -> None:
    """Raises Conflict if a newer tpuctl wrote the record: it may mean what this one misses."""
    if version > newest:
        raise Conflict(
            "Record of a newer tpuctl version",
            f"{where} has version {version}",
            hint="Upgrade tpuctl to the version that wrote it, or newer.",
        )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(map(str, problem["loc"]))
    return ": ".join(filter(None, (field, problem["msg"])))


def _damaged(where: str, problem: str) -> Conflict:
    return Conflict(
        "Cannot read job record",
        f"{where}: {problem}",
        hint="It is damaged, or was written by a newer tpuctl. Upgrade tpuctl and try again; if it "
        "is damaged, delete the object.",
    )
