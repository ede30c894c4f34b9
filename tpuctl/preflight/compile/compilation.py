"""One compilation: the script run up to its step, the step lowered, and the compiler asked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.engine.step import Step, step
from tpuctl.errors import OperationFailed, Refused, Usage
from tpuctl.model.events import Emit
from tpuctl.preflight.compile.batch_search import (
    MAX_BATCH,
    excess_text,
    first_batch,
    largest,
    memory_limit,
)
from tpuctl.preflight.compile.compile_report import (
    Answer,
    CompileReport,
    Obstacle,
    Refusal,
    Sizes,
    source_line,
)
from tpuctl.preflight.compile.protocol import Compiler, Disconnected, ScriptSocket
from tpuctl.preflight.rehearsal.observations import ShimFailed, read
from tpuctl.preflight.rehearsal.script_process import Command, Exit, last_lines, run

__all__ = ["LOWERED_WITH", "CompileRequest", "compile_step", "settings_of"]

LOWERED_WITH = "2.18.0"
BEFORE_STEP_SECONDS = 1800.0  # until the step is there: data may have to be read
TICK_SECONDS = 1.0
REPORT_SECONDS = 10.0
OBSERVATIONS = "observations.jsonl"
DEFAULT_BATCH = 32  # a core's batch, where the script does not say one


@dataclass(frozen=True)
class CompileRequest:
    """What to compile, and for what. `batch` is over all replicas; None asks for the script's
    own and then for the largest."""

    script: str  # as given by the user
    type: str
    generation: str
    replicas: int
    runtime: str | None  # the TensorFlow of the type's runtime
    batch: int | None = None
    notes: tuple[str, ...] = ()


def settings_of(
    request: CompileRequest, folder: Path, script: Path, root: Path, kind: str
) -> dict[str, Any]:
    """The settings of the shim in the script's process."""
    return {
        "observations": str(folder / OBSERVATIONS),
        "mode": "compile",
        "steps": 1,
        "replicas": request.replicas,
        "script": str(script),
        "root": str(root),
        "kind": kind,
        "compile": {"folder": str(folder)},
    }


async def compile_step(
    request: CompileRequest, command: Command, compiler: Sequence[str], folder: Path, emit: Emit
) -> CompileReport:
    """Run the script up to its first step, lower that, and compile it for one core.

    `folder` is the one of the settings. Whatever ends this ends both processes. Raises
    OperationFailed where the script ends before its step, Refused where it has none.
    """
    door = ScriptSocket(folder)
    await door.open()
    environment = {"PATH": command.environment.get("PATH", ""), "LC_ALL": "C.UTF-8"}
    tpu = Compiler(compiler, environment, folder / "compiler.log")
    running = asyncio.ensure_future(
        run(command, folder / "script", seconds=BEFORE_STEP_SECONDS * 8, look=lambda: None)
    )
    try:
        with step(emit, f"script/{request.script}", "run", "up to its first step") as taking:
            captured = await _first(door, running, folder / "script" / "log", taking.report)
            if captured["kind"] == "captured":
                taking.result = f"{captured['function']} taken"
        return await _Compilation(request, door, tpu, emit).report(captured)
    except Disconnected as error:
        raise OperationFailed(
            "Compiling ended early",
            str(error) or _tail(folder / "script" / "log", "the script's process went away"),
            hint="It needs up to 8 GB of this machine's memory.",
        ) from None
    finally:
        await door.close()
        await tpu.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _first(
    door: ScriptSocket, running: asyncio.Future[Exit], log: Path, report: Any
) -> dict[str, Any]:
    """What the script's process says at its first step. Raises where it never comes there."""
    coming = asyncio.ensure_future(door.first_message())
    try:
        while not coming.done():
            both: set[asyncio.Future[Any]] = {coming, running}
            await asyncio.wait(both, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not coming.done():
                await asyncio.wait({coming}, timeout=TICK_SECONDS)
                if not coming.done():
                    raise _early_exit(running.result(), log, log.parents[1] / OBSERVATIONS)
            lines = last_lines(log, 1)
            if lines:
                report(lines[0][:100])
        captured = coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    if captured["kind"] == "nothing":
        raise Refused(
            "No training step was found",
            "the script came to its end; looked for: " + "; ".join(captured["looked_for"]),
            hint="Train with Keras' fit, with strategy.run, or with a tf.function that takes a "
            "batch and has the gradients in it.",
        )
    if captured["kind"] == "failed":
        raise OperationFailed(
            "Step cannot be taken",
            captured["traceback"].strip(),
            hint=(
                "Mend what the traceback tells, or see what the step does without compiling it:\n"
                "    tpuctl rehearse SCRIPT"
            ),
        )
    return captured


def _early_exit(ended: Exit, log: Path, observations: Path) -> OperationFailed | Refused:
    failed = [failure for failure in read(observations) if isinstance(failure, ShimFailed)]
    if failed:
        words = f"{failed[-1].what}\n{failed[-1].traceback.strip()}"
        return OperationFailed("Step cannot be taken", words, hint="This is an error of tpuctl.")
    if ended.code == 0:
        return Refused(
            "No training step was found",
            "the script came to its end without one",
            hint="Train with Keras' fit, with strategy.run, or with a tf.function that takes a "
            "batch and has the gradients in it.",
        )
    code = "" if ended.code is None else f"it ended with {ended.code}"
    return OperationFailed(
        "Script ended before its first step", _tail(log, code), hint="It has to come that far."
    )


def _tail(log: Path, before: str) -> str:
    return "\n".join([before, *last_lines(log, 12)]).strip()


class _Compilation:
    """What was taken, and the compiler that is asked about it."""

    def __init__(
        self, request: CompileRequest, door: ScriptSocket, tpu: Compiler, emit: Emit
    ) -> None:
        self.request, self.door, self.tpu, self.emit = request, door, tpu, emit
        self.answers: dict[int | None, Answer] = {}
        self.refusals: dict[int | None, Refusal] = {}
        self.lowered: dict[str, Any] = {}

    async def report(self, captured: dict[str, Any]) -> CompileReport:
        request = self.request
        report = CompileReport(
            script=request.script,
            type=request.type,
            generation=request.generation,
            replicas=request.replicas,
            tensorflow=str(captured.get("tensorflow", LOWERED_WITH)),
            runtime=request.runtime,
            notes=request.notes,
        )
        if captured["kind"] == "refused":
            return replace(report, refusal=_refusal(captured))
        report = replace(
            report,
            function=captured["function"],
            where=source_line(captured["where"]),
            inputs=tuple((kind, tuple(shape)) for kind, shape in captured["inputs"]),
        )
        batch = captured["batch"] if request.batch is None else request.batch // request.replicas
        if captured["has_batch"] and batch is None:
            batch = DEFAULT_BATCH
            note = f"the script's batches are not all of one size: {batch} a core was asked about"
            report = replace(report, notes=(*report.notes, note))
        if not captured["has_batch"] and request.batch is not None:
            raise Usage(
                "The step has no batch",
                "none of its arguments is a tensor",
                where="--batch",
                hint="Leave --batch out, or have the step take its data as arguments.",
            )
        answer = await self.compile_batch(batch)
        if answer is None:
            return replace(report, refusal=self.refusals[batch])
        report = replace(
            report,
            requested=answer,
            available_bytes=await self._room(),
            dynamic_dimensions=self.lowered["dynamic"],
            has_bfloat16=self.lowered["has_bfloat16"],
            variable_bytes=self.lowered["held"],
        )
        if request.batch is not None or batch is None:
            return report
        return await self._search(report, answer)

    async def _search(self, report: CompileReport, first_answer: Answer) -> CompileReport:
        async def fits(batch: int) -> bool:
            answer = await self.compile_batch(batch)
            return answer is not None and answer.sizes is not None

        most = await largest(fits, first_batch(first_answer, report.available_bytes))
        following = max(1, 2 * most)
        notes = report.notes
        if following in self.refusals:
            reason = self.refusals[following]
            notes += (f"{following} a core was refused: {reason.message.splitlines()[0][:300]}",)
        return replace(
            report,
            largest_batch=most,
            largest_is_exact=following in self.answers and 2 * most <= MAX_BATCH,
            alternatives=tuple(
                other for other in self.answers.values() if other is not first_answer
            ),
            notes=notes,
        )

    async def _room(self) -> int | None:
        answer = await self.tpu.query(generation=self.request.generation)
        return memory_limit(answer.get("refused", ""))

    async def compile_batch(self, batch: int | None) -> Answer | None:
        """What the compiler says of a batch; None, with a refusal kept, where it is not lowered."""
        if batch in self.answers or batch in self.refusals:
            return self.answers.get(batch)
        label = "as it is" if batch is None else str(batch)
        with step(self.emit, f"batch/{label}", "compile", self._where()) as asking:
            lowered = await _timed("lowering", self.door.lower(batch), asking)
            if lowered["kind"] == "refused":
                self.refusals[batch] = _refusal(lowered)
                asking.result = "cannot be lowered"
                return None
            if lowered["kind"] != "lowered":
                raise OperationFailed(
                    "Step cannot be lowered",
                    str(lowered.get("traceback", lowered)),
                    hint="What XLA cannot compile is mostly found, with what helps, by\n"
                    "    tpuctl check SCRIPT",
                )
            self.lowered = lowered
            program = Path(lowered["program"])
            compiling = self.tpu.query(
                generation=self.request.generation,
                program=str(program),
                results=lowered["results"],
                changed=lowered["changed"],
            )
            compiled = await _timed("compiling", compiling, asking)
            program.unlink(missing_ok=True)
            if "failed" in compiled:
                self.refusals[batch] = Refusal(compiled["failed"], "compiler")
                asking.result = "refused"
                return None
            words = compiled.get("refused", "")
            sizes = None
            if not words:
                sizes = Sizes(*(compiled[name] for name in Sizes.__dataclass_fields__))
            answer = Answer(
                batch, sizes, excess_text(words) if words else "", words, compiled["seconds"]
            )
            asking.result = (
                f"{sizes.peak / 1e9:.1f} GB" if sizes else f"refused: {answer.shortfall}"
            )
        self.answers[batch] = answer
        return answer

    def _where(self) -> str:
        return f"one core of {self.request.type}"


async def _timed(
    activity: str, answering: Coroutine[Any, Any, dict[str, Any]], asking: Step
) -> dict[str, Any]:
    """Tell now and then how long it has been at it."""
    answer = asyncio.ensure_future(answering)
    try:
        asking.report(activity)
        began = asking.seconds
        while not answer.done():
            await asyncio.wait({answer}, timeout=REPORT_SECONDS)
            if not answer.done():
                asking.report(f"{activity} for {asking.seconds - began:.0f} s")
        return answer.result()
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


def _refusal(answer: dict[str, Any]) -> Refusal:
    obstacles = [
        Obstacle(operation["operation"], source_line(operation["where"]))
        for operation in answer["operations"]
    ]
    obstacles.sort(
        key=lambda obstacle: (
            obstacle.where is None,
            obstacle.where and (obstacle.where.file, obstacle.where.line),
            obstacle.operation,
        )
    )
    return Refusal(answer["message"], answer["by"], source_line(answer["where"]), tuple(obstacles))
