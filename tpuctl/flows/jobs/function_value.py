"""What the function of a job returned or raised, as its workers stored it in the bucket."""

from __future__ import annotations

import base64
import io
import pickle
import platform
import sys
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import NotFound, RemoteFailed, TimedOut, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import load_job, read_status
from tpuctl.model.jobs.job import JobRecord, JobStatus
from tpuctl.polling import Backoff, wait_until

MAIN = "__mp_main__"  # what machines name the caller's script or notebook
MAX_VALUE_BYTES = 1 << 34
UPLOAD_SECONDS = 120.0  # that the last upload may take after a job has ended


@dataclass(frozen=True)
class FunctionOutcome:
    """A value or an exception, both pickled, or neither if the job ended otherwise."""

    job: str
    status: JobStatus
    worker: str = "0"
    python: str = ""
    value: bytes | None = None
    kind: str = ""  # the name of the exception's class
    message: str = ""
    traceback: str = ""
    error: bytes = b""  # empty if it cannot be pickled
    is_unsendable: bool = False  # the arguments could not be loaded, or the value not be sent

    @property
    def where(self) -> str:
        return f"Worker {self.worker} of job {self.job}, Python {self.python}"

    def load(self, data: bytes) -> Any:
        """Raises what unpickling does."""
        return _Unpickler(io.BytesIO(data)).load()

    def exception(self) -> BaseException:
        """The function's exception, or RemoteFailed if it is not available."""
        if self.is_unsendable:
            return RemoteFailed(
                "Value cannot be sent",
                f"{self.where}: {self.message}",
                hint="Pass and return numbers, texts, arrays and the like; both sides need the "
                "packages of their types.\nSave everything else in $TPUCTL_OUTPUT.",
            )
        if self.error:
            try:
                error = self.load(self.error)
            except Exception:  # its class is not installed here
                error = None
            if isinstance(error, BaseException):
                return error
        detail = f"{self.kind}: {self.message}" if self.kind else self._how_it_ended()
        return RemoteFailed(
            "Function failed", detail, hint=f"To see why:\n    tpuctl explain {self.job}"
        )

    def _how_it_ended(self) -> str:
        if self.status.exit_code == 0:
            return f"job {self.job} ended without returning a value: it may have called sys.exit"
        detail = f": {self.status.detail}" if self.status.detail else ""
        state = self.status.state.replace("_", " ")
        return f"job {self.job} {state} with exit code {self.status.exit_code}{detail}"

    def unreadable(self, subject: str, error: Exception) -> TpuctlError:
        return RemoteFailed(
            "Value cannot be loaded",
            f"{subject} of {self.where} cannot be loaded by Python {platform.python_version()}: "
            f"{type(error).__name__}: {error}",
            hint="Install the same packages here, or return numbers, texts and arrays.",
        )


async def read_outcome(context: Context, record: JobRecord) -> FunctionOutcome:
    """What the last attempt of a job that has ended returned or raised."""
    store = context.store
    record = await load_job(store, record.id)

    async def ended() -> JobStatus | None:
        status = await read_status(store, record)
        return status if status.exit_code is not None else None

    try:
        status = await wait_until(
            ended,
            description=f"the value of job {record.id}",
            seconds=UPLOAD_SECONDS,
            backoff=Backoff(0.1, 2.0),
        )
    except TimedOut as error:
        raise RemoteFailed(
            "Value not received",
            f"the workers of job {record.id} did not store it in gs://{store.name}",
            hint=f"To see why:\n    tpuctl explain {record.id}",
        ) from error
    worker = record.workers[0] if status.worker is None else status.worker
    try:
        data = await store.get_bytes(record.value_name(worker), max_bytes=MAX_VALUE_BYTES)
    except NotFound:
        return FunctionOutcome(record.id, status, record.worker_name(worker))
    try:
        return _outcome(record, status, data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteFailed(
            "Value cannot be read",
            f"{store.uri(record.value_name(worker))} is damaged: {type(error).__name__}",
            hint=f"See what the job did:\n    tpuctl logs {record.id}",
        ) from error


def _outcome(record: JobRecord, status: JobStatus, data: bytes) -> FunctionOutcome:
    import json

    fields = json.loads(data)
    error = fields.get("error") or {}
    value = fields.get("value")
    return FunctionOutcome(
        record.id,
        status,
        record.worker_name(fields["worker"]),
        fields["python"],
        None if value is None else base64.b64decode(value),
        error.get("type", ""),
        error.get("message", ""),
        error.get("traceback", ""),
        base64.b64decode(error.get("pickle", "")),
        error.get("is_unsendable", False),
    )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        main = getattr(sys.modules["__main__"], "__spec__", None)  # of `python -m`
        if (module == MAIN and MAIN not in sys.modules) or (main and module == main.name):
            module = "__main__"
        return super().find_class(module, name)
