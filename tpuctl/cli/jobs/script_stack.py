"""`run --tpu`: the TPU of a script without a stack file; otherwise the stack file's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.completion.candidates import complete_types, complete_zones
from tpuctl.cli.parameters.options import project_option
from tpuctl.cli.stack.stack import confirm_up
from tpuctl.cli.state import State
from tpuctl.errors import Conflict, Diagnostic, InvalidStack, Usage

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.catalog import AcceleratorType
    from tpuctl.flows.jobs.run_state import RunState
    from tpuctl.flows.stack.init import TpuOptions
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.flows.stack.script_stack import ScriptStack
    from tpuctl.model.jobs.job import JobKind, JobRecord

RunTpu = Annotated[
    str,
    typer.Option(
        "--tpu",
        metavar="TYPE",
        help="Run on a new TPU of this type, without a stack file.",
        autocompletion=complete_types,
    ),
]
RunZone = Annotated[
    str,
    typer.Option(
        "--zone",
        metavar="ZONE",
        help="Zones for --tpu, in order (default: the cheapest).",
        autocompletion=complete_zones,
    ),
]
RunSpot = Annotated[bool, typer.Option("--spot", help="Use spot capacity for --tpu.")]
RunProject = Annotated[str, project_option("Project id for --tpu (default: gcloud's).")]
RunKeep = Annotated[bool, typer.Option("--keep", help="Do not delete the TPU of --tpu at the end.")]

WITHOUT_FILE = """\
Run it without one, on a TPU that is deleted at the end:
    tpuctl run --tpu v5e-1 SCRIPT
Or create one:
    tpuctl init
or pass another with --stack-file."""
STACK_FILE_USE = (
    "A stack file keeps these settings and adds others: a TPU that stays up from job to job, "
    "limits of time and cost, retries, secrets. To write one for this stack:"
)


@dataclass(frozen=True)
class ScriptTpuOptions:
    """The options of `run` in place of a stack file, as typed."""

    tpu: str = ""
    zone: str = ""
    is_spot: bool = False
    project: str = ""
    keeps: bool = False

    def validate(self, *, down: bool, detach: bool) -> None:
        """Raise Usage for options that contradict each other, or need --tpu."""
        if not self.tpu:
            self._require_no_others()
        elif self.keeps and down:
            raise Usage(
                "Conflicting options",
                "--down deletes the TPU at the end, --keep keeps it",
                hint="Remove one of them.",
                where="--keep",
            )
        elif detach and not self.keeps:
            raise Usage(
                "Conflicting options",
                "--tpu deletes the TPU when the job ends, and --detach does not wait for that",
                hint="Remove --detach. Or add --keep: the TPU then deletes itself some time after "
                "the job.",
                where="--detach",
            )

    def _require_no_others(self) -> None:
        others = {
            "--zone": self.zone,
            "--spot": self.is_spot,
            "--project": self.project,
            "--keep": self.keeps,
        }
        for option in (name for name, is_used in others.items() if is_used):
            raise Usage(
                "Missing option",
                f"{option} is for a TPU without a stack file, whose type is missing",
                hint="Add the type:\n    tpuctl run --tpu v5e-1 SCRIPT\n"
                f"Or remove {option}: the stack file decides.",
                where=option,
            )

    def open(self, state: State, program: str, form: JobKind, words: Sequence[str]) -> JobTpu:
        """The TPU for a program, with a client for its stack.

        Raises Usage, Conflict, InvalidStack.
        """
        if form == "shell" and not state.program:
            import shlex

            state.program = shlex.join(["--", program, *words])
        if not self.tpu:
            _require_stack_file(state)
            return JobTpu(state, state.tpuctl())
        from tpuctl.catalog import zones
        from tpuctl.cli.help.suggestions import require_type, require_zones
        from tpuctl.flows.stack.init import TpuOptions
        from tpuctl.flows.stack.script_stack import find_project, script_stack
        from tpuctl.preflight.submit_gate import runnable

        accelerator = require_type(self.tpu)
        tpu = TpuOptions(
            accelerator, require_zones(self.zone, zones(), takes_region=False) or (), self.is_spot
        )
        job = runnable(program, form)
        path = _stack_file(state, job.folder)
        if path is not None:
            return self._of_file(state, path, accelerator, tpu)
        project = find_project(self.project, local=state.is_free, accelerator=self.tpu)
        script = script_stack(job, accelerator, tpu, project)
        state.tpu_options = script.run_options
        return JobTpu(
            state,
            state.tpuctl(stack=script.stack),
            script,
            goes_up=True,
            goes_down=not self.keeps,
            program=program
            if form == "script"
            else f"-m {program}"
            if form == "module"
            else program,
        )

    def _of_file(
        self, state: State, path: Path, accelerator: AcceleratorType, tpu: TpuOptions
    ) -> JobTpu:
        """The same TPU of a stack file, created and deleted like one without a file."""
        tpuctl = state.tpuctl()
        stack = tpuctl.stack
        if (
            stack.accelerator != accelerator
            or (self.is_spot and not stack.is_spot)
            or (self.project and self.project != stack.project)
            or not {*tpu.zones} <= {*stack.zones}
        ):
            capacity = "spot" if stack.is_spot else stack.file.tpu.capacity
            raise Conflict(
                "Stack file has another TPU",
                f"{path} is used here, with {stack.counted_type}, {capacity}, in "
                f"{', '.join(stack.zones)} of project {stack.project}",
                hint="Use that TPU:\n    tpuctl run --up --down SCRIPT\n"
                "For another one, change it in the stack file, or run the script in a folder "
                "without a stack file.",
                where="--tpu",
            )
        return JobTpu(state, tpuctl, goes_up=True, goes_down=not self.keeps)


@dataclass(frozen=True)
class JobTpu:
    """The TPU that a job runs on: the stack file's or, with `script`, one without a file."""

    state: State
    tpuctl: Tpuctl
    script: ScriptStack | None = None
    goes_up: bool = False
    goes_down: bool = False
    program: str = ""

    def confirm(self, prepared: Prepared) -> None:
        """Show what will be created and its price, and ask, unless --yes."""
        if self.script is None:
            confirm_up(self.state, prepared)
            return
        from tpuctl.view.jobs.script_stack import describe
        from tpuctl.view.stack.cost import cost_sentence

        state, stack = self.state, prepared.stack
        error = prepared.quota.error(stack.project, is_local=state.is_free)
        if error is not None:
            raise error
        source, goes_down = self.script.project.source, self.goes_down
        state.announce(
            describe(stack, prepared.plan, self.program, source=source, goes_down=goes_down)
        )
        cost = cost_sentence(prepared.cost, is_free=state.is_free)
        if state.yes:
            state.announce(cost)
        end = f"run {self.program}, and delete it" if self.goes_down else f"and run {self.program}"
        state.confirm(f"{cost} Create it, {end}?")

    @contextmanager
    def naming_conflicts(self) -> Iterator[None]:
        """For a script without a stack file, say what is up without comparing it to one."""
        try:
            yield
        except Conflict as error:
            detail, comparison, _ = error.diagnostics[0].detail.partition(", the stack file")
            if not comparison:
                detail, comparison, _ = detail.partition(", but the stack file")
            if self.script is None or not comparison:
                raise
            raise Conflict(
                "Another TPU is up for this script",
                detail,
                hint="Delete it first:\n    tpuctl down\nOr run on it, with its type and zone.",
                where="--tpu",
            ) from error

    @contextmanager
    def showing_end(self, run_state: RunState) -> Iterator[None]:
        """Show at the end what is left and what a stack file is for, even if it raises."""
        try:
            yield
        finally:
            if self.script is not None and not self.state.json:
                if run_state.down_result is not None:
                    if run_state.record is not None and self._succeeded(run_state):
                        self._show_stack_file(run_state.record)
                elif not self.goes_down and run_state.has_started:
                    self.show_kept()

    @staticmethod
    def _succeeded(run_state: RunState) -> bool:
        return run_state.job_ended is not None and run_state.job_ended.state == "succeeded"

    def show_kept(self) -> None:
        """Show how to use the TPU that stays up, and how to delete it."""
        if self.script is None or self.goes_down:
            return
        from tpuctl.view.jobs.script_stack import describe_kept

        text = describe_kept(self.tpuctl.stack, is_free=self.state.is_free)
        again = f"tpuctl run --keep {self.state.program or self.state.script}"
        self._note(
            f"\n{text}\nTo run again, to open a shell, and to delete it:\n"
            f"    {again}\n    tpuctl ssh\n    tpuctl down\n{STACK_FILE_USE}\n"
            f"    tpuctl {self.script.init_command}"
        )

    def _show_stack_file(self, record: JobRecord) -> None:
        """Once for each version of the script."""
        from tpuctl.flows.jobs.rehearsals import content_of, is_new_advice

        assert self.script is not None
        stack = self.tpuctl.stack
        content = content_of(stack, record.bundle, record.script)
        if is_new_advice("stack-file", stack, content):
            self._note(
                "To delete the bucket with its log and output, too:\n"
                f"    tpuctl down --delete-bucket\n{STACK_FILE_USE}\n"
                f"    tpuctl {self.script.init_command}"
            )

    def _note(self, text: str) -> None:
        from tpuctl.model.events import Note

        self.tpuctl.emit(Note(text))


def _require_stack_file(state: State) -> None:
    """Raise InvalidStack if there is none, with what can be done without one."""
    if state.named_stack_file is None and not os.path.lexists(state.stack_file):
        detail = f"{state.stack_file} does not exist"
        raise InvalidStack([Diagnostic("Stack file not found", detail, WITHOUT_FILE)])


def _stack_file(state: State, folder: Path) -> Path | None:
    """The stack file that is used here, or else, as if it was named, the one next to the script."""
    from tpuctl.model.stack.stack_search import STACK_FILE

    if state.named_stack_file is not None:
        return state.named_stack_file
    if os.path.lexists(state.stack_file):
        return state.stack_file
    path = folder / STACK_FILE
    if not os.path.lexists(path):
        return None
    state.named_stack_file = state.stack_file = path
    return path
