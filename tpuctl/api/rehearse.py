"""Rehearsals: a script run for a few steps on this machine, as the stack's workers would run it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.api.local_buckets import buckets_in, open_cloud
from tpuctl.engine.step import step
from tpuctl.errors import Refused, Usage
from tpuctl.files import private_folder
from tpuctl.model.events import CommandOutput, Emit
from tpuctl.model.job import as_argument

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.api.local_buckets import Sample
    from tpuctl.flows.submission import Submission
    from tpuctl.jobs.bundle import Bundle
    from tpuctl.model.stack import Stack
    from tpuctl.preflight.rehearsal.findings import Target
    from tpuctl.preflight.rehearsal.job_packages import Packages
    from tpuctl.preflight.rehearsal.passes import Mode, Pass
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

__all__ = [
    "Rehearsing",
    "Wish",
    "job_variables",
    "output_of",
    "rehearse",
]

STEPS = 8
SECONDS = 600.0  # for each pass
Report = Callable[[str, float | None], None]
GRACE = 20.0  # seconds that a script may take for saving, asked to end
AGAIN = 3  # steps of the second run, which is to show that it begins, and goes on
MOST_REPLICAS = 8  # logical devices: more say nothing new, and take this machine's time


@dataclass(frozen=True)
class Wish:
    """How to rehearse."""

    steps: int = STEPS
    seconds: float = SECONDS
    samples: tuple[Sample, ...] = ()
    tensorflow: str | None = None  # another version than the runtime's
    is_verbose: bool = False


async def rehearse(tpuctl: Tpuctl, wanted: Submission, wish: Wish) -> Rehearsal:
    """Run what was submitted twice for some steps on this machine, and judge what was seen.

    Nothing of it reaches Google: gs:// is the local cloud's, which is started if need be. Ctrl-C
    ends it with what was found until then. Raises Refused for what is not Python, and for a
    TensorFlow that this Python has no image of.
    """
    from tpuctl.flows.rehearsals import content_of, rehearsals
    from tpuctl.flows.submit import make_bundle
    from tpuctl.preflight.rehearsal.assessment import judge
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

    if wanted.form == "shell":
        raise Refused(
            "Only Python can be rehearsed",
            f"{wanted.program} is a command, in which nothing can be observed",
            hint="Rehearse the script that it starts:\n    tpuctl rehearse SCRIPT",
        )
    if wanted.script is not None and not wanted.script.is_file():
        raise Usage("No such script", str(wanted.script), hint="Name a file that exists.")
    stack = tpuctl.stack
    version = wish.tensorflow or stack.runtime.tensorflow
    await _require_image(tpuctl, version, is_asked=wish.tensorflow is not None)
    memory = rehearsals()
    with tempfile.TemporaryDirectory(prefix="tpuctl-rehearsal-") as scratch:
        bundle = await make_bundle(wanted, Path(scratch))
        one = Rehearsing(
            stack,
            wanted,
            wish,
            bundle,
            replace(_target(stack), tensorflow=version),
            tpuctl.emit,
            tpuctl.may_install,
            home=memory.folder / "home",
            folder=memory.new_folder(new_name()),
            scratch=Path(scratch),
        )
        await one.prepare()
        passes = await one.run()
    first = passes[0]
    done = Rehearsal(
        judge(passes, one.target, asked=wish.steps, operations=_operations(first)),
        one.target,
        tuple(passes),
        one.folder,
        one.output,
        one.left_out,
        any(each.stopped == "interrupted" for each in passes),
    )
    for program in one.folder.glob("*/*.hlo"):  # large, and counted by now
        program.unlink(missing_ok=True)
    if not done.is_interrupted:
        outcome = {"errors": done.judgement.has_errors, "at": datetime.now(UTC).isoformat()}
        memory.note(content_of(stack, bundle.digest, one.program), outcome)
    return done


def new_name() -> str:
    """A name for one rehearsal: `20261122-014500-ab12`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _target(stack: Stack) -> Target:
    from tpuctl.preflight.rehearsal.findings import Target

    one, price, nodes = stack.accelerator, stack.price, len(stack.nodes)
    return Target(
        type=one.name if nodes == 1 else f"{nodes} × {one.name}",
        generation=one.generation,
        chips=one.chips * nodes,
        replicas=one.devices * nodes,
        bytes_per_replica=(one.hbm_gb_per_chip << 30) * one.chips // one.devices,
        kind="node" if stack.is_node else "vm",
        per_hour=None if price is None else price.per_hour * nodes,
        price_note="" if price is None else f"{price.kind}, prices of {price.read}",
        is_spot=stack.is_spot,
    )


async def _require_image(tpuctl: Tpuctl, version: str | None, *, is_asked: bool) -> None:
    """Raise Refused where no image has exactly this TensorFlow: another may behave otherwise."""
    from tpuctl.api.local_cloud import install_interpreter
    from tpuctl.emulator.machines.images import ImageStore
    from tpuctl.interpreters import install_hint, or_list

    if version is None:
        return
    images = ImageStore()
    minors = images.interpreters(version) if version in images.locks() else []
    if minors and not images.can_run(version):
        await install_interpreter(version, tpuctl.emit, tpuctl.may_install)
    if minors and images.can_run(version):
        return
    nearest = images.nearest(version)
    runtime = tpuctl.stack.runtime.version
    what = f"TensorFlow {version}" if is_asked else f"{runtime}: TensorFlow {version}"
    hints = []
    if minors:
        what += f" needs Python {or_list(minors)}, and none was found on PATH, in pyenv or in uv"
        hints.append(install_hint(minors[0]))
    else:
        what += f". There are {', '.join(images.locks())}"
    if nearest is not None:
        hints.append(
            "Rehearse with another version, which may behave differently:\n"
            f"    tpuctl rehearse --tensorflow {nearest} SCRIPT"
        )
    raise Refused(
        "No image of this TensorFlow",
        what,
        hint="\n".join(hints),
        where="--tensorflow" if is_asked else "tpu.runtime",
    )


def _operations(first: Pass) -> float | None:
    """The arithmetic of the training step, where that could be counted."""
    from tpuctl.preflight.rehearsal.flop_count import operations_of

    step = first.training_step
    named = step.compilations[0].program if step is not None else None
    if named is None:
        return None
    try:
        return operations_of(Path(named).read_text("utf-8", "replace"))
    except OSError:
        return None


class Rehearsing:
    """One rehearsal under way."""

    def __init__(
        self,
        stack: Stack,
        wanted: Submission,
        wish: Wish,
        bundle: Bundle,
        target: Target,
        emit: Emit,
        may_install: Callable[[str], bool],
        *,
        home: Path,
        folder: Path,
        scratch: Path,
    ) -> None:
        self.stack = stack
        self.wanted = wanted
        self.wish = wish
        self.bundle = bundle
        self.home = home
        self.folder = folder
        self.scratch = scratch
        self.target = target
        self.emit = emit
        self.may_install = may_install
        root = wanted.root or (wanted.script.parent if wanted.script else Path())
        self.root = root.resolve()
        self.program = wanted.program or bundle.script
        self.output = output_of(wanted.bucket, folder.name)
        self.packages: Packages | None = None
        self.cloud: Mapping[str, str | None] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        found = []
        if self.wanted.installation.setup:
            found.append("job.setup, which changes a machine, was not run")
        for name in self.wanted.secrets.references:
            found.append(
                f"{name} is not set: it is in Secret Manager, which was not asked; "
                f"--secret {name} takes it from here"
            )
        version = self.wish.tensorflow
        if version and version != self.stack.runtime.tensorflow:
            found.append(f"with TensorFlow {version}, which {self.stack.runtime.version} has not")
        return tuple(found)

    async def prepare(self) -> None:
        """The runtime's Python with what the job installs, and the local cloud with its buckets."""
        from tpuctl.api.local_cloud import prepare_image
        from tpuctl.emulator.machines.images import ImageStore

        private_folder(self.home)
        version = self.target.tensorflow
        await prepare_image(version, self.emit, self.may_install)
        image = ImageStore().path_of(version) / "bin" / "python3"
        await self._open_cloud()
        self.packages = await self._install(image)

    async def _open_cloud(self) -> None:
        texts = [*self.wanted.args, *self.wanted.env.values()]
        self.cloud = await open_cloud(
            {self.wanted.bucket, *buckets_in(texts, self._sources())},
            self.wish.samples,
            self.emit,
            location=self.stack.bucket_location,
        )

    def _sources(self) -> list[Path]:
        from tpuctl.jobs.file_selection import selected

        entries = selected(self.root, self.wanted.include, self.wanted.exclude)
        return [one.path for one in entries if one.kind == "file" and one.name.endswith(".py")]

    async def _install(self, image: Path) -> Packages:
        from tpuctl.cloud.threads import in_thread
        from tpuctl.emulator.machines.images import ImageStore
        from tpuctl.emulator.machines.process_environment import pip_configuration
        from tpuctl.preflight.rehearsal.job_packages import Packages, install

        wanted = self.wanted.installation
        if not (wanted.requirements or wanted.dependencies or wanted.project or wanted.wheels):
            return Packages(image)
        code = self.root
        if wanted.project is not None or any(one.startswith("./") for one in wanted.dependencies):
            code = self.scratch / "project"  # building one writes into its folder
            await in_thread(self._copy, code)
        text, settings = await in_thread(pip_configuration)
        config = self.scratch / "pip.conf"
        config.write_text(text, "utf-8")
        variables = {
            **{name: value for name, value in os.environ.items() if name[:6] != "PYTHON"},
            **settings,
            "HOME": str(self.home),
            "PIP_CONFIG_FILE": str(config),
            "PIP_CACHE_DIR": str(ImageStore().downloads),
        }
        variables.pop("VIRTUAL_ENV", None)
        with step(self.emit, "rehearsal/requirements", "make") as making:
            return await install(
                image,
                wanted.model_dump(),
                code,
                self.bundle.digest,
                folder=self.scratch / "requirements",
                variables=variables,
                report=making.report,
            )

    def _copy(self, into: Path) -> None:
        from tpuctl.jobs.file_selection import selected

        into.mkdir()
        for entry in selected(self.root, self.wanted.include, self.wanted.exclude):
            place = into / entry.name
            if entry.kind == "folder":
                place.mkdir(parents=True, exist_ok=True)
            elif entry.kind == "file":
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(entry.path, place)

    async def run(self) -> list[Pass]:
        """The first pass, and where that went well the second one."""
        steps = self.wish.steps
        first = await self._pass("xla", 1, steps)
        if not first.steps or first.has_failed or first.stopped == "interrupted":
            return [first]
        replicas = min(self.target.replicas, MOST_REPLICAS)
        return [first, await self._pass("replicas", replicas, min(steps, AGAIN))]

    async def _pass(self, mode: Mode, replicas: int, steps: int) -> Pass:
        from tpuctl.preflight.rehearsal.observations import read
        from tpuctl.preflight.rehearsal.passes import Pass
        from tpuctl.preflight.rehearsal.script_process import (
            Command,
            Exit,
            last_lines,
            raised_in,
            run,
        )

        folder = self.folder / mode
        folder.mkdir()
        observations = folder / "observations.jsonl"
        settings = folder / "settings.json"
        told = self._settings(observations, mode, replicas, steps)
        settings.write_text(json.dumps(told), "utf-8")
        command = Command(self._argv(), self.root, self._environment(settings))
        with step(self.emit, f"rehearsal/{mode}", "run") as running:
            showing = _Showing(folder, steps, self.wish.is_verbose, running.report, self.emit)
            try:
                ended = await run(command, folder, seconds=self.wish.seconds, look=showing.look)
            except asyncio.CancelledError:
                ended = Exit(None, "interrupted", running.seconds)
            done = Pass(
                mode,
                replicas,
                tuple(read(observations)),
                ended.code,
                ended.seconds,
                folder / "log",
                last_lines(folder / "log"),
                raised_in(folder / "log"),
                ended.stopped,
            )
            running.result = _told(done)
        return done

    def _settings(
        self, observations: Path, mode: Mode, replicas: int, steps: int
    ) -> dict[str, Any]:
        script = self.root / self.program if self.wanted.form == "script" else ""
        return {
            "observations": str(observations),
            "mode": mode,
            "steps": steps,
            "replicas": replicas,
            "script": str(script),
            "root": str(self.root),
            "kind": self.target.kind,
            "grace": GRACE,
        }

    def _argv(self) -> list[str]:
        assert self.packages is not None
        is_script = self.wanted.form == "script"
        start = [as_argument(self.program)] if is_script else ["-m", self.program]
        return [str(self.packages.python), *start, *self.wanted.args]

    def _environment(self, settings: Path) -> dict[str, str]:
        import tpuctl.preflight
        from tpuctl.preflight.rehearsal.script_environment import script_variables, shell_variables

        assert self.packages is not None
        packages = self.packages
        modules = list(packages.modules)
        if not modules and (self.root / "src").is_dir():
            modules = [str(self.root / "src")]
        found = script_variables(
            shell_variables(os.environ),
            self.cloud,
            job_variables(self.wanted, self.folder.name, self.program, self.output),
            home=self.home,
            shim=Path(tpuctl.preflight.__file__).parent / "shim",
            settings=settings,
            programs=packages.programs or (str(packages.python.parent),),
            modules=modules,
        )
        if packages.home is not None:
            found["VIRTUAL_ENV"] = str(packages.home)
        return found


def job_variables(wanted: Submission, name: str, program: str, output: str) -> dict[str, str]:
    """As the supervisor of the first worker sets them."""
    from tpuctl.flows.submission import worker_environment
    from tpuctl.model.job import JobRecord

    record = JobRecord(
        id=name,
        stack=wanted.stack,
        project=wanted.project,
        zone=wanted.zone,
        node=wanted.node,
        bucket=wanted.bucket,
        script=program,
        bundle="",
        worker_count=wanted.worker_count,
        workers=wanted.workers,
        submitted=datetime.now(UTC),
    )
    return {
        **wanted.env,
        **worker_environment(wanted, record, wanted.workers[0]),
        "TPUCTL_OUTPUT": output,
        **wanted.secrets.values,
    }


def output_of(bucket: str, name: str) -> str:
    """Where what a rehearsal of this name saves goes."""
    return f"gs://{bucket}/tpuctl/rehearsals/{name}/output"


class _Showing:
    """How far a pass is, and its output if requested."""

    def __init__(
        self, folder: Path, steps: int, is_verbose: bool, report: Report, emit: Emit
    ) -> None:
        self.observations = folder / "observations.jsonl"
        self.log = folder / "log"
        self.steps = steps
        self.is_verbose = is_verbose
        self.report = report
        self.emit = emit
        self.seen = self.shown = 0

    def look(self) -> None:
        from tpuctl.preflight.rehearsal.observations import Compiled, Step, read

        if self.is_verbose:
            self._show()
        size = self.observations.stat().st_size if self.observations.exists() else 0
        if size == self.seen:
            return
        self.seen = size
        found = read(self.observations)
        steps = [one for one in found if isinstance(one, Step)]
        if steps:
            taken = min(len(steps), self.steps)
            self.report(f"step {taken} of {self.steps}", taken / self.steps)
        elif any(isinstance(one, Compiled) for one in found):
            self.report("compiled", None)

    def _show(self) -> None:
        if not self.log.exists():
            return
        with self.log.open("rb") as log:
            log.seek(self.shown)
            data = log.read()
        if data:
            self.shown += len(data)
            self.emit(CommandOutput(0, data, is_error=True))


def _told(one: Pass) -> str:
    count = len(one.steps)
    steps = f"{count} step{'' if count == 1 else 's'}"
    if one.has_failed:
        return f"failed after {steps}" if count else "failed"
    return f"{one.stopped}, {steps}" if one.stopped else steps
