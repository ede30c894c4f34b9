"""Rehearsals: run a script for a few steps on this machine as the stack's workers would."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.engine.step import step
from tpuctl.errors import Refused, Usage
from tpuctl.files import is_file, private_folder
from tpuctl.flows.preflight.job_folders import JobFolder
from tpuctl.flows.preflight.local_buckets import (
    bucket_names,
    list_objects,
    on_local_cloud,
    prepare_local_cloud,
)
from tpuctl.model.events import CommandOutput, Emit, Note, WarningIssued
from tpuctl.model.jobs.job import as_argument
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.flows.jobs.submission import Submission
    from tpuctl.flows.preflight.local_buckets import Sample
    from tpuctl.jobs.bundle import Bundle
    from tpuctl.model.stack.stack import Stack
    from tpuctl.preflight.rehearsal.findings import Target
    from tpuctl.preflight.rehearsal.job_packages import Packages
    from tpuctl.preflight.rehearsal.passes import LeftOut, Mode, Pass
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal
    from tpuctl.preflight.rehearsal.script_process import Command, Exit
    from tpuctl.preflight.rehearsal.slice_processes import SliceProcess

# In a rehearsal's folder: the copy that the script runs in, and what it wrote there.
FILES, WRITTEN = "files", "written"
STEPS = 8
TIMEOUT_SECONDS = 600.0  # for each pass
Report = Callable[[str, float | None], None]
GRACE_SECONDS = 20.0  # for a script to save after SIGTERM
SECOND_PASS_STEPS = 3  # enough to show that the second pass starts and continues
MAX_REPLICAS = 8  # of a TensorFlow strategy: more only take longer
MAX_DEVICES = 64  # of JAX, whose programs may depend on their number
MAX_PROCESSES = 8  # of JAX: each takes some 300 MB
# Of PyTorch/XLA, which aborts if the threads of devices reach a collective 10 seconds apart.
MAX_TORCH_DEVICES = 8


@dataclass(frozen=True)
class RehearsalOptions:
    """How to rehearse."""

    steps: int = STEPS
    seconds: float = TIMEOUT_SECONDS
    samples: tuple[Sample, ...] = ()
    tensorflow: str | None = None  # overrides the runtime's version
    is_verbose: bool = False


async def rehearse(
    stack: Stack,
    submission: Submission,
    options: RehearsalOptions,
    emit: Emit,
    may_install: Callable[[str], bool],
) -> Rehearsal:
    """Run the submission twice for a few steps on this machine and report what would fail.

    Nothing reaches Google: gs:// paths go to the local cloud, which is started if necessary.
    After Ctrl-C the report covers the steps so far. `may_install` decides whether uv may download
    a Python that is missing. Raises Refused for a command that is not
    Python, for a TensorFlow version without an image, and without the job's Python.
    """
    from tpuctl.flows.jobs.job_start import make_bundle
    from tpuctl.flows.jobs.rehearsals import content_of, rehearsal_history
    from tpuctl.local_cloud.machine_images import ImageStore
    from tpuctl.preflight.rehearsal.assessment import assess
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

    if submission.kind == "shell":
        raise Refused(
            "Only Python can be rehearsed",
            f"{submission.program} is a command, which cannot be observed",
            hint="Rehearse the script that it runs:\n    tpuctl rehearse SCRIPT",
        )
    if submission.script is not None and not is_file(submission.script):
        raise Usage("Script not found", str(submission.script), hint="Pass an existing file.")
    stack = stack.for_framework(submission.framework)
    version = _tensorflow(stack, submission, options)
    await _require_image(stack, version, emit, may_install, is_asked=options.tensorflow is not None)
    stack = await on_local_cloud(stack, emit)
    submission = replace(submission, project=stack.project, bucket=stack.bucket)
    history = rehearsal_history()
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with (
        ImageStore().rehearsing(),
        tempfile.TemporaryDirectory(prefix="tpuctl-rehearsal-") as scratch,
    ):
        bundle = await make_bundle(submission)
        for warning in bundle.warnings:
            emit(WarningIssued(warning))
        run = RehearsalRun(
            stack,
            submission,
            options,
            bundle,
            replace(_target(stack), tensorflow=version),
            emit,
            may_install,
            home=history.folder / "home",
            folder=history.new_folder(name),
            scratch=Path(scratch),
        )
        try:
            await run.prepare()
            passes = await run.run()
        finally:
            run.clean_up()
    first = passes[0]
    rehearsal = Rehearsal(
        assess(passes, run.target, requested_steps=options.steps, operations=_operations(first)),
        run.target,
        tuple(passes),
        run.folder,
        run.output,
        run.limitations,
        any(outcome.stopped == "interrupted" for outcome in passes),
        run.written,
    )
    for program in run.folder.rglob("*.hlo"):  # large, and already counted
        program.unlink(missing_ok=True)
    if not rehearsal.is_interrupted:
        outcome = {"errors": rehearsal.assessment.has_errors, "at": datetime.now(UTC).isoformat()}
        history.record(content_of(stack, bundle.digest, run.program), outcome)
    return rehearsal


def _target(stack: Stack) -> Target:
    from tpuctl.preflight.rehearsal.findings import Target

    accelerator, price, nodes = stack.accelerator, stack.price, len(stack.nodes)
    return Target(
        type=accelerator.name if nodes == 1 else f"{nodes} × {accelerator.name}",
        generation=accelerator.generation,
        chips=accelerator.chips * nodes,
        replicas=accelerator.devices * nodes,
        bytes_per_replica=(accelerator.hbm_gb_per_chip << 30)
        * accelerator.chips
        // accelerator.devices,
        kind="node" if stack.is_node else "vm",
        per_hour=None if price is None else price.per_hour * nodes,
        price_note="" if price is None else f"{price.kind}, prices of {price.read}",
        is_spot=stack.is_spot,
        workers=accelerator.workers * nodes,
    )


def _tensorflow(stack: Stack, submission: Submission, options: RehearsalOptions) -> str | None:
    """The version of the image's TensorFlow that the script sees; None if it sees none."""
    if submission.installation.python is None:
        return options.tensorflow or stack.runtime.tensorflow
    if options.tensorflow is not None:
        raise Usage(
            "The job does not use the image's TensorFlow",
            f"--tensorflow selects an image, and the job brings Python "
            f"{submission.installation.python.version} and its own packages",
            hint="Use the image's Python, or remove --tensorflow:\n"
            f"    tpuctl rehearse --python image --tensorflow {options.tensorflow} SCRIPT",
            where="--tensorflow",
        )
    return None


async def _require_image(
    stack: Stack,
    version: str | None,
    emit: Emit,
    may_install: Callable[[str], bool],
    *,
    is_asked: bool,
) -> None:
    """Raise Refused unless an image has exactly this TensorFlow: another may behave differently."""
    from tpuctl.flows.local_cloud import install_interpreter
    from tpuctl.interpreters import install_hint, or_list
    from tpuctl.local_cloud.machine_images import ImageStore

    if version is None:
        return
    images = ImageStore()
    minors = images.interpreters(version) if version in images.locks() else []
    if minors and not images.can_run(version):
        await install_interpreter(version, emit, may_install)
    if minors and images.can_run(version):
        return
    nearest = images.nearest(version)
    runtime = stack.runtime.version
    detail = f"TensorFlow {version}" if is_asked else f"{runtime}: TensorFlow {version}"
    hints = []
    if minors:
        detail += f" needs Python {or_list(minors)}, not found on PATH, in pyenv or in uv"
        hints.append(install_hint(minors[0]))
    else:
        detail += f". Available: {', '.join(images.locks())}"
    if nearest is not None:
        hints.append(
            "Rehearse with another version (it may behave differently):\n"
            f"    tpuctl rehearse --tensorflow {nearest} SCRIPT"
        )
    raise Refused(
        "No image for this TensorFlow version",
        detail,
        hint="\n".join(hints),
        where="--tensorflow" if is_asked else "tpu.runtime",
    )


def _operations(first: Pass) -> float | None:
    """Floating-point operations of the training step, if they could be counted."""
    from tpuctl.preflight.rehearsal.flop_count import count_operations

    step = first.training_step
    program = step.compilations[0].program if step is not None else None
    if program is None:
        return None
    try:
        return count_operations(Path(program).read_text("utf-8", "replace"))
    except OSError:
        return None


@dataclass
class RehearsalRun:
    """A rehearsal in progress."""

    stack: Stack
    submission: Submission
    options: RehearsalOptions
    bundle: Bundle
    target: Target
    emit: Emit
    may_install: Callable[[str], bool]
    home: Path
    folder: Path
    scratch: Path
    code: JobFolder | None = None  # a copy of what is uploaded, in which the script runs
    written: Path | None = None  # what it wrote there, if anything
    packages: Packages | None = None
    python_note: str = ""  # which Python is used instead of the job's
    cloud: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        submission = self.submission
        root = submission.root or (submission.script.parent if submission.script else Path())
        self.root = root.resolve()
        self.program = submission.program or self.bundle.script
        self.output = f"gs://{submission.bucket}/tpuctl/rehearsals/{self.folder.name}/output"

    @property
    def devices(self) -> int:
        """The CPU devices of a JAX script, as many in each slice."""
        slices = self.stack.slices
        return min(self.target.replicas, MAX_DEVICES) // slices * slices

    @property
    def processes(self) -> int:
        """The processes of a JAX script, as many in each slice."""
        slices = self.stack.slices
        workers = min(len(self.submission.workers), MAX_PROCESSES)
        counts = [count for count in range(workers, 0, -1) if not self.devices % count]
        return next((count for count in counts if not count % slices), 1)

    @property
    def torch_devices(self) -> int:
        """The CPU devices of a script with PyTorch/XLA."""
        return min(self.target.replicas, MAX_TORCH_DEVICES)

    @property
    def limitations(self) -> tuple[str, ...]:
        notes = []
        if self.submission.installation.setup:
            notes.append("job.setup was not run: it changes the machine")
        for name in self.submission.secrets.references:
            notes.append(
                f"{name} is not set: rehearsals do not read Secret Manager; "
                f"pass --secret {name} to use the variable of this shell"
            )
        version = self.options.tensorflow
        if version and version != self.stack.runtime.tensorflow:
            runtime = self.stack.runtime
            notes.append(
                f"rehearsed with TensorFlow {version}; {runtime.version} has {runtime.tensorflow}"
            )
        if self.python_note:
            notes.append(self.python_note)
        notes += self._left_out_notes
        return tuple(notes)

    @property
    def _left_out_notes(self) -> tuple[str, ...]:
        """Which packages of the lock, that only TPUs use, were left out or replaced."""
        from tpuctl.flows.preflight.job_interpreter import CPU_PACKAGES

        lock = self.submission.installation.lock
        if lock is None or self.packages is None or not self.packages.left_out:
            return ()
        notes = []
        for package in self.packages.left_out:
            name, _, version = package.partition(" ")
            instead = CPU_PACKAGES[name]
            notes.append(
                f"{instead} {version} replaces {package} of {lock.path}, which runs on TPUs only"
                if instead
                else f"{package} of {lock.path} was not installed: only TPUs use it"
            )
        return tuple(notes)

    async def prepare(self) -> None:
        """Copy what a worker gets, install the job's packages for its Python or else the runtime's,
        and create the local buckets."""
        from tpuctl.cloud.threads import in_thread

        private_folder(self.home)
        code = self.folder.resolve() / FILES
        self.code = await in_thread(JobFolder, self.bundle, code)
        python = await self._python()
        await self._open_cloud()
        self.packages = await self._install(python)

    async def _python(self) -> Path:
        """The interpreter that the packages are installed for."""
        from tpuctl.flows.local_cloud import prepare_image
        from tpuctl.flows.preflight.job_interpreter import job_interpreter, python_note
        from tpuctl.local_cloud.machine_images import ImageStore

        build = self.submission.installation.python
        if build is None:
            version = self.target.tensorflow
            await prepare_image(version, self.emit, self.may_install)
            return ImageStore().path_of(version) / "bin" / "python3"
        interpreter = await job_interpreter(build, self.emit, self.may_install)
        if interpreter.version != build.version:
            self.python_note = (
                f"rehearsed with Python {interpreter.version}; the job runs on {build.version}"
            )
        self.emit(Note(python_note(build, interpreter)))
        return Path(interpreter.path)

    async def _open_cloud(self) -> None:
        texts = [*self.submission.args, *self.submission.env.values()]
        self.cloud = await prepare_local_cloud(
            bucket_names(texts, self.bundle.sources_of_python),
            self.options.samples,
            self.emit,
            self.stack,
        )

    async def _install(self, python: Path) -> Packages:
        from tpuctl.cloud.threads import in_thread
        from tpuctl.flows.preflight.job_interpreter import (
            CPU_PACKAGES,
            PackageFolders,
            install_packages,
        )
        from tpuctl.local_cloud.machine_images import ImageStore
        from tpuctl.preflight.rehearsal.job_packages import Packages, for_cpu

        installation = self.submission.installation
        if not installation.has_packages and installation.python is None:
            return Packages(python)
        installation = installation.model_copy(
            update={
                "dependencies": tuple(filter(None, map(for_cpu, installation.dependencies))),
                "packages": tuple(filter(None, map(for_cpu, installation.packages))),
            }
        )
        assert self.code is not None
        code, changed = self.code.path, self._cpu_requirements()
        if (
            changed is not None
            or installation.project is not None
            or installation.members
            or installation.lock is not None
            or any(
                requirement.startswith("./")
                for requirement in (*installation.dependencies, *installation.packages)
            )
        ):
            code = self.scratch / "project"  # installers write into its folder
            await in_thread(JobFolder, self.bundle, code)
        if changed is not None:
            (code / str(installation.requirements)).write_text(changed, "utf-8")
        with step(self.emit, "rehearsal/requirements", "create") as progress:
            return await install_packages(
                python,
                installation,
                code,
                self.bundle.digest,
                PackageFolders(self.home, ImageStore().downloads, self.scratch),
                progress.report,
                replaced=CPU_PACKAGES,
                job={**self.submission.env, **self.submission.secrets.values},
            )

    def _cpu_requirements(self) -> str | None:
        """The requirements file for a CPU; None if that is the same."""
        from tpuctl.preflight.rehearsal.job_packages import for_cpu

        file = self.root / (self.submission.installation.requirements or "")
        if not file.is_file():
            return None
        text = file.read_text("utf-8", "replace")
        changed = for_cpu(text)
        return None if changed == text else changed

    async def run(self) -> list[Pass]:
        """Run the first pass, and the second one if the first succeeded: of JAX, in as many
        processes as the slice has workers."""
        from tpuctl.preflight.rehearsal.observations import Distributed

        steps = self.options.steps
        first = await self._pass("xla", 1, steps)
        if not first.steps or first.has_failed or first.stopped == "interrupted":
            return [first]
        steps = min(steps, SECOND_PASS_STEPS)
        if first.framework == "jax" and self.processes > 1 and first.of(Distributed):
            return [first, await self._pass("replicas", 1, steps, self.processes)]
        replicas = min(self.target.replicas, MAX_REPLICAS)
        return [first, await self._pass("replicas", replicas, steps)]

    def clean_up(self) -> None:
        """Keep only what the script wrote to its folder, until the next rehearsal."""
        for folder in self.folder.parent.glob(f"*/{WRITTEN}"):
            shutil.rmtree(folder, ignore_errors=True)
        if self.code is not None and self.code.keep_written():
            self.written = self.code.path.rename(self.code.path.with_name(WRITTEN))

    def _left_out(self, failed: Pass) -> LeftOut | None:
        """The file that the script did not find, if it is not uploaded."""
        from tpuctl.jobs.upload_rules import find_left_out
        from tpuctl.preflight.rehearsal.passes import LeftOut

        error = failed.ended.error if failed.ended is not None else None
        message = "\n".join(failed.tail) if error is None else error.message
        include, exclude = self.submission.include, self.submission.exclude
        missing = find_left_out(message, self.root, include, exclude, self.bundle.script)
        if missing is None:
            return None
        name, exclusion = missing
        return LeftOut(name, exclusion.rule, exclusion.remedy)

    async def _pass(self, mode: Mode, replicas: int, steps: int, processes: int = 1) -> Pass:
        from tpuctl.preflight.rehearsal.script_process import Exit, run
        from tpuctl.preflight.rehearsal.slice_processes import run_together

        folder = self.folder / mode
        members = [
            self._process(folder / f"process-{number}" if number else folder, settings)
            for number, settings in enumerate(self._settings(mode, replicas, steps, processes))
        ]
        main = members[0]
        with step(self.emit, f"rehearsal/{mode}", "run") as progress:
            display = _PassDisplay(
                *(folder, steps, self.options.is_verbose, progress.report, self.emit, main.command)
            )
            seconds = self.options.seconds
            try:
                if processes > 1:
                    exits = await run_together(members, seconds=seconds, poll=display.update)
                else:
                    exits = [await run(main.command, folder, seconds=seconds, poll=display.update)]
            except asyncio.CancelledError:
                exits = [Exit(None, "interrupted", progress.seconds)] * processes
            results = [
                self._result(member, mode, replicas, exit_status)
                for member, exit_status in zip(members, exits, strict=True)
            ]
            result = results[0]
            if processes > 1:
                result = replace(result, processes=tuple(results))
            if result.framework != "tensorflow":
                devices = self.devices if result.framework == "jax" else self.torch_devices
                outputs = await list_objects(self.output, self.emit)
                result = replace(result, replicas=devices, outputs=tuple(outputs))
            progress.result = _describe_pass(result)
        return result

    def _process(self, folder: Path, settings: dict[str, Any]) -> SliceProcess:
        from tpuctl.preflight.rehearsal.script_process import Command
        from tpuctl.preflight.rehearsal.slice_processes import SliceProcess

        assert self.code is not None
        folder.mkdir()
        observations, file = folder / "observations.jsonl", folder / "settings.json"
        file.write_text(json.dumps({**settings, "observations": str(observations)}), "utf-8")
        environment = self._environment(file, settings["process"])
        command = Command(self._argv(), self.code.path, environment, source=self.root)
        return SliceProcess(command, folder, observations)

    def _result(self, process: SliceProcess, mode: Mode, replicas: int, exit_status: Exit) -> Pass:
        from tpuctl.preflight.rehearsal.observations import read
        from tpuctl.preflight.rehearsal.passes import Pass
        from tpuctl.preflight.rehearsal.script_process import last_lines

        process.command.restore_file(process.observations, is_json=True)
        log = process.folder / "log"
        result = Pass(
            mode,
            replicas,
            tuple(read(process.observations)),
            exit_status.code,
            exit_status.seconds,
            log,
            last_lines(log),
            exit_status.stopped,
        )
        return replace(result, left_out=self._left_out(result)) if result.has_failed else result

    def _settings(
        self, mode: Mode, replicas: int, steps: int, processes: int
    ) -> list[dict[str, Any]]:
        """The settings of each process, without the file of its observations."""
        from tpuctl.simulated_tpu.jax_devices import unused_address

        assert self.code is not None
        root = self.code.path
        script = root / self.program if self.submission.kind == "script" else ""
        common = {
            "mode": mode,
            "steps": steps,
            "replicas": replicas,
            "devices": self.devices // processes,
            "slices": self.stack.slices,
            "processes": processes,
            "coordinator": unused_address() if processes > 1 else "",
            "torch_devices": self.torch_devices,
            "script": str(script),
            "root": str(root),
            "kind": self.target.kind,
            "grace": GRACE_SECONDS,
        }
        return [{**common, "process": number} for number in range(processes)]

    def _argv(self) -> list[str]:
        assert self.packages is not None
        is_script = self.submission.kind == "script"
        start = [as_argument(self.program)] if is_script else ["-m", self.program]
        return [str(self.packages.python), *start, *self.submission.args]

    def _environment(self, settings: Path, process: int) -> dict[str, str]:
        import tpuctl.simulated_tpu
        from tpuctl.preflight.rehearsal.script_environment import script_variables, shell_variables

        assert self.packages is not None
        packages = self.packages
        modules = list(packages.modules)
        assert self.code is not None
        if not modules and (self.code.path / "src").is_dir():
            modules = [str(self.code.path / "src")]
        variables = script_variables(
            shell_variables(os.environ),
            self.cloud,
            job_variables(self.submission, self.folder.name, self.program, self.output, process),
            home=self.home,
            shim=Path(tpuctl.simulated_tpu.__file__).parent,
            settings=settings,
            programs=packages.programs or (str(packages.python.parent),),
            modules=modules,
        )
        if packages.virtual_env is not None:
            variables["VIRTUAL_ENV"] = str(packages.virtual_env)
        return variables


def job_variables(
    submission: Submission, name: str, program: str, output: str, process: int = 0
) -> dict[str, str]:
    """The variables that the supervisor of a worker sets, by default of the first one."""
    from tpuctl.flows.jobs.submission import worker_environment
    from tpuctl.local_ports import LOOPBACK
    from tpuctl.model.jobs.job import JobRecord

    machines = submission.machines
    record = JobRecord(
        id=name,
        stack=submission.stack,
        project=submission.project,
        zone=machines.zone,
        node=machines.node,
        bucket=submission.bucket,
        script=program,
        bundle="",
        worker_count=submission.worker_count,
        workers=submission.workers,
        submitted=datetime.now(UTC),
    )
    addresses = (LOOPBACK,) * submission.worker_count
    submission = replace(submission, machines=replace(machines, addresses=addresses))
    return {
        **submission.env,
        **worker_environment(submission, record, submission.workers[process]),
        "TPUCTL_OUTPUT": output,
        **submission.secrets.values,
    }


@dataclass
class _PassDisplay:
    """Shows the progress of a pass, and its log if verbose."""

    folder: Path
    steps: int
    is_verbose: bool
    report: Report
    emit: Emit
    command: Command
    observations_size: int = 0
    log_offset: int = 0

    def __post_init__(self) -> None:
        self.observations, self.log = self.folder / "observations.jsonl", self.folder / "log"

    def update(self) -> None:
        from tpuctl.preflight.rehearsal.observations import Compiled, Step, read

        if self.is_verbose:
            self._show_log()
        size = self.observations.stat().st_size if self.observations.exists() else 0
        if size == self.observations_size:
            return
        self.observations_size = size
        observed = read(self.observations)
        steps = [entry for entry in observed if isinstance(entry, Step)]
        if steps:
            count = min(len(steps), self.steps)
            self.report(f"step {count} of {self.steps}", count / self.steps)
        elif any(isinstance(entry, Compiled) for entry in observed):
            self.report("compiled", None)

    def _show_log(self) -> None:
        if not self.log.exists():
            return
        with self.log.open("rb") as log:
            log.seek(self.log_offset)
            data = log.read()
        if data:
            self.log_offset += len(data)
            text = self.command.restore(data.decode("utf-8", "surrogateescape"))
            self.emit(CommandOutput(0, text.encode("utf-8", "surrogateescape"), is_error=True))


def _describe_pass(rehearsal_pass: Pass) -> str:
    count = len(rehearsal_pass.steps)
    steps = counted(count, "step")
    if rehearsal_pass.has_failed:
        return f"failed after {steps}" if count else "failed"
    return f"{rehearsal_pass.stopped}, {steps}" if rehearsal_pass.stopped else steps
