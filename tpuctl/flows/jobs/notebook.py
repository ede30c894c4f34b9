"""`notebook`: JupyterLab on worker 0, as a job of the stack, and a port of this machine for it.

Like any job it continues without this machine, and its records are in the bucket. Unlike others it
is no activity by itself: the watchdog asks what its kernels do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.engine.step import step
from tpuctl.errors import Diagnostic, NotFound, RemoteFailed, TpuctlError, Usage
from tpuctl.files import is_folder
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import jobs
from tpuctl.flows.jobs.submission import Submission, with_job_python
from tpuctl.flows.machines.forward import PortMapping, forward_ports
from tpuctl.flows.machines.workers import connections, nodes_of
from tpuctl.model.events import Event, PortForwarded, WarningIssued
from tpuctl.model.jobs.attempt import Retries
from tpuctl.model.jobs.failures import PREEMPTED_STATES, STOPPED_STATES
from tpuctl.model.jobs.job import NOTEBOOK, JobRecord, WorkerRecord
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import notebooks_prefix
from tpuctl.model.text.record_parsing import parse_answer, parse_record
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote.ssh import SshTransport
from tpuctl.remote.transport import Transport

WORKER = 0
PACKAGE = "jupyterlab"
GONE_SECONDS = 15.0  # between questions whether the machine exists
GONE_STATES = (*PREEMPTED_STATES, *STOPPED_STATES, "DELETING", "TERMINATED")
START_SECONDS = 120.0  # for JupyterLab to respond, once it is installed


@dataclass(frozen=True)
class OpenNotebook:
    """A notebook server, reachable from this machine."""

    job: str
    url: str  # on this machine's loopback, with the server's token
    files: str  # gs:// folder of the notebooks
    wait: Callable[[], Awaitable[None]]  # until its machine is gone: raises NotFound


def notebook_submission(
    stack: Stack, folder: Path | None, cloud: str, python: str = ""
) -> Submission:
    """A job that uploads the folder (default: the stack file's) and serves notebooks.

    Raises Usage.
    """
    stack.require_valid()
    stack = stack.with_python(python)
    root = folder or stack.folder
    if not is_folder(root):
        raise Usage(
            "Folder not found",
            f"{root} is not a folder",
            hint="Pass the folder with your code, or none for the stack file's:\n"
            "    tpuctl notebook",
            where=str(root),
        )
    submission = Submission.of(
        stack, None, cloud=cloud, form="notebook", program=NOTEBOOK, root=root
    )
    installation = submission.installation
    packages = (*installation.packages, PACKAGE)
    submission = replace(
        submission, installation=installation.model_copy(update={"packages": packages})
    )
    return replace(
        with_job_python(submission, stack),
        workers=(WORKER,),
        # The values of its kernels would be lost: rather none than a TPU without a user.
        retries=Retries(preemption=0, infrastructure=0, failure=0),
    )


async def start_notebook(
    context: Context,
    submission: Submission,
    start: Callable[[Context, Submission], Awaitable[JobRecord]],
    wait_until_running: Callable[[Context, JobRecord], Awaitable[int | None]],
) -> JobRecord:
    """The notebook job that runs on the stack's machines, otherwise a new one.

    It is started as by `run`, whose functions these are. Raises RemoteFailed if it cannot be
    prepared; its log has been emitted then.
    """
    record = await _running_job(context)
    if record is None:
        if submission.worker_count > 1:
            context.emit(WarningIssued(_one_of_many(submission.worker_count)))
        record = await start(context, submission)
    with step(context.emit, "job/notebook", "start", "installs JupyterLab the first time"):
        if await wait_until_running(context, record) is not None:
            raise _not_started(record)
        async with connections(context) as transports:
            await _server(context, record, transports[WORKER])
    return record


@asynccontextmanager
async def open_notebook(
    context: Context, record: JobRecord, port: int | None, *, shares_loopback: bool
) -> AsyncIterator[OpenNotebook]:
    """Forward a port of this machine, by default the next free one, while in the block."""
    async with connections(context) as transports:
        server = await _server(context, record, transports[WORKER])
        forwarded: list[PortForwarded] = []
        try:
            async with forward_ports(
                [PortMapping(server.port, port)],
                transports[WORKER],
                _without_ports(context.emit, forwarded),
                shares_loopback=shares_loopback,
            ):
                url = f"{forwarded[0].url}/lab?token={server.token}"
                files = f"gs://{record.bucket}/{notebooks_prefix(record.stack)}"
                yield OpenNotebook(record.id, url, files, partial(_wait, context, record, files))
        except Usage as error:
            raise Usage(
                error.diagnostics[0].summary,
                error.diagnostics[0].detail,
                hint="Pass another port, or none to use the next free one:\n    tpuctl notebook",
                where="--port",
            ) from error


async def _wait(context: Context, record: JobRecord, files: str) -> None:
    """Ask the cloud, not the machine, where a connection would count as use."""
    while True:
        await asyncio.sleep(GONE_SECONDS)
        try:
            nodes = await nodes_of(context.stack, context.cloud)
        except NotFound:
            nodes = []
        except TpuctlError:  # this machine may be offline for a while
            continue
        if all(node.state in GONE_STATES for node in nodes):
            raise NotFound(
                "The TPU is gone",
                f"notebook {record.id} ended with it; its files are in {files}",
                hint="To continue with these files on a new one:\n"
                "    tpuctl up\n    tpuctl notebook",
            )


def _without_ports(
    emit: Callable[[Event], None], forwarded: list[PortForwarded]
) -> Callable[[Event], None]:
    """Keep forwarded ports, whose addresses lack the token, and pass on other events."""

    def pick(event: Event) -> None:
        if isinstance(event, PortForwarded):
            forwarded.append(event)
        else:
            emit(event)

    return pick


async def _running_job(context: Context) -> JobRecord | None:
    """The notebook job that runs on the machines that exist now."""
    for summary in await jobs(context):
        record = summary.record
        if record.kind != "notebook" or summary.status.exit_code is not None:
            continue
        async with connections(context) as transports:
            worker = await _worker_record(record, transports[WORKER])
            if worker is not None and not worker.has_ended:
                return record
    return None


async def _worker_record(record: JobRecord, transport: Transport) -> WorkerRecord | None:
    """The job's record on the machine; None if it never ran there."""
    result = await transport.run(["cat", f"{record.folder}/record.json"])
    if result.exit_code != 0:
        return None
    return parse_record(WorkerRecord, result.stdout, f"worker {transport.name}")


class _Server(BaseModel):
    """JupyterLab on a worker: `notebook.json`."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    port: int = Field(ge=1, le=65535)
    token: str = Field(pattern=r"^[A-Za-z0-9_-]{1,200}$")  # in a URL that is opened here


async def _server(context: Context, record: JobRecord, transport: SshTransport) -> _Server:
    """What `notebook.json` says, once JupyterLab responds."""

    async def probe() -> _Server | None:
        result = await transport.run(["cat", f"{record.folder}/notebook.json"])
        if result.exit_code == 0:
            return parse_answer(_Server, result.stdout, f"worker {transport.name}")
        worker = await _worker_record(record, transport)
        if worker is None or worker.has_ended:
            raise _not_started(record)
        return None

    return await wait_until(
        probe,
        description="JupyterLab starting",
        seconds=START_SECONDS,
        backoff=Backoff(0.2, 2.0),
        clock=context.clock,
    )


def _not_started(record: JobRecord) -> RemoteFailed:
    return RemoteFailed(
        "Notebook did not start",
        f"job {record.id} has ended",
        hint=f"Its log says why:\n    tpuctl logs {record.id}",
    )


def _one_of_many(workers: int) -> Diagnostic:
    return Diagnostic(
        "The notebook runs on one worker",
        f"the stack has {workers} workers, and its kernels run on worker {WORKER}: JAX and "
        "PyTorch/XLA wait for the others when they start",
        "Use a type with one worker, such as v6e-8, or run a script on all workers:\n"
        "    tpuctl run SCRIPT",
    )
