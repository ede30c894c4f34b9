"""Jobs as programs handle them: submit, follow, stop, and find again from any machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.api.stack import StackApi
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.events import Note, Warned

if TYPE_CHECKING:
    from tpuctl.flows.submission import Submission
    from tpuctl.model.job import Form, JobRecord, JobStatus, JobSummary
    from tpuctl.model.part import LogPart
    from tpuctl.preflight.findings import Report
    from tpuctl.preflight.submit_gate import Runnable

__all__ = ["JobApi"]

NOT_REHEARSED = "Not rehearsed as it is. What would fail on a TPU is found on this machine with"
UNWATCHED = (
    "When its node is taken away the job goes on at your next `tpuctl wait` or `tpuctl logs -f`, "
    "on any machine: nobody else watches over it. With controller: {} in the stack file it goes "
    "on by itself."
)


class JobApi(StackApi):
    """What can be done with the jobs of one stack."""

    # Whether lines of several workers' logs carry their names. Who reads events needs none.
    names_workers: bool = True

    def submission(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: Form = "script",
        folder: Path | None = None,
        check: bool = True,
        timeout: float | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Submission:
        """What would be submitted, without any network. Raises Usage or Refused where the check
        finds that it cannot run.

        `script` is the path of a script, else as `form` says a module's name or a command's first
        word; those are of `folder`, which is shipped: the current one by default. After `timeout`
        seconds the machines end it, all its attempts taken together. `secrets` tells where further
        ones come from, by name, as `job.secrets` of the stack file does: {"HF_TOKEN": "env"}.
        """
        from tpuctl.flows.submission import Submission
        from tpuctl.preflight.submit_gate import check_runnable, runnable

        self.stack.require_makeable()  # its job may come to need another node
        wanted = runnable(str(script), form, folder)
        made = Submission.of(
            self.stack,
            wanted.file,
            tuple(arguments),
            cloud=self.cloud_name,
            form=wanted.form,
            program=wanted.program,
            root=wanted.folder,
            timeout=timeout,
            secrets=secrets,
        )
        if check:
            check_runnable(wanted, made.installation)
            self._check(wanted)
        return made

    def check(
        self, script: str | Path, *, form: Form = "script", folder: Path | None = None
    ) -> Report:
        """What the static check finds in a script or module, for the stack's TPU.

        Nothing of it is run; no network. `errors` of the report are what `submission` refuses.
        """
        from tpuctl.preflight.check import check_wanted, target_of
        from tpuctl.preflight.submit_gate import runnable

        self.stack.require_makeable()
        return check_wanted(runnable(str(script), form, folder), target_of(self.stack))

    def _check(self, wanted: Runnable) -> None:
        """Raise Refused for errors; tell of the rest in short."""
        from tpuctl.model.job import as_argument
        from tpuctl.preflight.check import check_wanted, target_of
        from tpuctl.preflight.submit_gate import require_no_errors, warning_of

        report = check_wanted(wanted, target_of(self.stack))
        require_no_errors(report)
        file = as_argument(str(wanted.file))
        words = ["-m", wanted.program] if wanted.form == "module" else [file]
        warning = warning_of(report, f"tpuctl check {shlex.join(words)}")
        if warning is not None:
            self.emit(Warned(warning))

    async def submit(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: Form = "script",
        folder: Path | None = None,
        check: bool = True,
    ) -> JobRecord:
        """Check it, bundle its folder, ship that, start it on its workers; see `submission`."""
        wanted = self.submission(script, arguments, form=form, folder=folder, check=check)
        return await self.start(wanted)

    async def start(self, wanted: Submission) -> JobRecord:
        """Bundle and ship what `submission` made, start it on its workers."""
        from tpuctl.engine.step import step
        from tpuctl.flows.nodes import nodes_of
        from tpuctl.flows.submission import placed
        from tpuctl.flows.submit import submit
        from tpuctl.preflight.submit_gate import check_setup

        with step(self.emit, "job/stack", "find") as finding:
            check_setup(wanted.installation, are_apart=self.cloud.endpoint.runs_startup_scripts)
            nodes = await nodes_of(self.stack, self.cloud)
            wanted = await placed(wanted, self.stack, self.cloud, nodes)
            finding.result = f"{nodes[0].accelerator_type} in {nodes[0].zone}"
        async with self.connections() as transports:
            chosen = {worker: transports[worker] for worker in wanted.workers}
            record = await submit(wanted, self.store, chosen, self.emit)
        self._offer_rehearsal(wanted, record)
        is_watched = await self.hand_over(record)
        if not is_watched and self.stack.is_spot and record.retries.preemption:
            self.emit(Note(UNWATCHED))
        return record

    def _offer_rehearsal(self, wanted: Submission, record: JobRecord) -> None:
        """Where what was submitted was never rehearsed on this machine, and could have been."""
        from tpuctl.api.rehearsal import rehearsed_before
        from tpuctl.model.job import as_argument

        if self.controller is not None or rehearsed_before(self.stack, record):
            return
        script = as_argument(str(wanted.script))
        words = ["-m", wanted.program] if wanted.form == "module" else [script]
        typed = shlex.join([*words, *(["--", *wanted.args] if wanted.args else [])])
        self.emit(Note(f"{NOT_REHEARSED}\n    tpuctl rehearse {typed}"))

    async def begin(self, record: JobRecord) -> int | None:
        """Wait until the job runs on all its workers. Where it has failed on one instead, its log
        and what went wrong are emitted, and its exit code is the answer."""
        from tpuctl.flows.follow import follow
        from tpuctl.jobs.beginning import begin

        async with self.connections() as transports:
            chosen = {worker: transports[worker] for worker in record.workers}
            records = await begin(record, chosen, until_running=True)
            failed = [one.worker for one in records.values() if one.has_failed]
            if not failed:
                return None
            return await follow(record, self.store, chosen, self.emit, shown=failed[:1])

    async def follow(
        self,
        record: JobRecord,
        *,
        all_workers: bool = False,
        part: LogPart | None = None,
        show: bool = True,
    ) -> int:
        """Emit the job's log until it has ended; its exit code.

        The log of the first worker byte for byte, or of all workers, line by line with their
        names, or a `part` of it; of the record's attempt and of all that follow it: where machines
        failed, or were taken away, another is started here within the job's retries, on a stack
        brought up anew if need be. Cancelling leaves the job alone.
        """
        from tpuctl.api.local import unless_gone
        from tpuctl.flows.recover import follow_to_the_end
        from tpuctl.flows.renewal import cloud_of_jobs
        from tpuctl.flows.restart import Means

        means = Means(
            stack=self.stack,
            cloud=self.cloud,
            store=self.store,
            emit=self.emit,
            cloud_name=cloud_of_jobs(self.cloud_name),
            plan=self.plan,
            bring_up=self.bring_up,
            connections=self.connections,
        )
        workers = record.workers if all_workers else record.workers[:1]
        following = follow_to_the_end(
            means, record, workers=workers, show=show, part=self._shown(part)
        )
        return await unless_gone(following, self.cloud.endpoint, f"tpuctl wait {record.id}")

    async def run(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        up: bool = False,
        down: bool = False,
    ) -> int:
        """Submit a script and follow it to its end; the job's exit code.

        With `up` the stack is brought up first; with `down` it is taken down afterwards, whatever
        happened. Raises Conflict when the job succeeded and something that costs money is left.
        """
        wanted = self.submission(script, arguments)
        prepared = await self.plan() if up else None
        try:
            if prepared is not None:
                await self.bring_up(prepared)
            exit_code = await self.follow(await self.start(wanted))
        except BaseException:
            if down:
                await self.down()
            raise
        leaks = (await self.down()).leaks if down else ()
        if leaks and not exit_code:
            raise Conflict(
                "Still charged",
                ", ".join(one.address for one in leaks),
                hint="Take it away with\n    tpuctl down",
            )
        return exit_code

    async def log(
        self, record: JobRecord, *, all_workers: bool = False, part: LogPart | None = None
    ) -> None:
        """Emit what an attempt has logged until now, or a part of it."""
        from tpuctl.flows.showing import show_log

        shown = self._shown(part)
        workers = record.workers if all_workers else record.workers[:1]
        async with self.connections(required=False) as transports:
            await show_log(record, workers, self.store, transports, self.emit, part=shown)

    def _shown(self, part: LogPart | None) -> LogPart:
        from tpuctl.model.part import WHOLE

        return replace(part or WHOLE, is_named=self.names_workers)

    async def job(self, name: str = "", attempt: int | None = None) -> JobRecord:
        """A job by its id or its word; the latest when none is given. Raises NotFound.

        As its last attempt runs it, or that of this number. Raises Usage when there is none.
        """
        from tpuctl.flows.follow import latest, load

        try:
            asking = load(self.store, name, attempt) if name else latest(self.store, attempt)
            found = await asking
        except NotFound:  # the job, or a bucket to look for it in
            if name:
                raise NotFound(
                    "No such job",
                    f"{name} is not in gs://{self.store.name}",
                    hint="See them with\n    tpuctl jobs",
                ) from None
            found = None
        if found is None:
            raise NotFound(
                "No job yet",
                f"nothing was submitted to stack {self.stack.name}",
                hint="Submit something with\n    tpuctl run SCRIPT",
            )
        return found

    async def jobs(self) -> list[JobSummary]:
        """All jobs of the stack, the latest first; none where there is no bucket."""
        from tpuctl.flows.follow import list_jobs

        try:
            return await list_jobs(self.store)
        except NotFound:
            return []

    async def stop(self, record: JobRecord, *, grace: float = 30.0) -> JobStatus:
        """End the job on every worker: SIGTERM, then SIGKILL after so many seconds."""
        from tpuctl.flows.follow import stop

        async with self.connections(required=False) as transports:
            return await stop(record, self.store, transports, self.emit, grace=grace)
