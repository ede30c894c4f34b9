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
from tpuctl.preflight.compile.batch_search import MOST, guess, largest, room_of, too_much
from tpuctl.preflight.compile.compile_report import (
    Answer,
    CompileReport,
    Obstacle,
    Refusal,
    Sizes,
    place,
)
from tpuctl.preflight.compile.protocol import Compiler, Door, HungUp
from tpuctl.preflight.rehearsal.observations import ShimFailed, read
from tpuctl.preflight.rehearsal.script_process import Command, Exit, last_lines, run

__all__ = ["LOWERED_WITH", "Wanted", "compile_step", "settings_of"]

LOWERED_WITH = "2.18.0"
BEFORE_STEP_SECONDS = 1800.0  # until the step is there: data may have to be read
TICK_SECONDS = 1.0
TOLD_SECONDS = 10.0
OBSERVATIONS = "observations.jsonl"
UNKNOWN = 32  # a core's batch, where the script does not say one


@dataclass(frozen=True)
class Wanted:
    """What to compile, and for what. `batch` is over all replicas; None asks for the script's
    own and then for the largest."""

    script: str  # as it is told
    type: str
    generation: str
    replicas: int
    runtime: str | None  # the TensorFlow of the type's runtime
    batch: int | None = None
    notes: tuple[str, ...] = ()


def settings_of(
    wanted: Wanted, folder: Path, script: Path, root: Path, kind: str
) -> dict[str, Any]:
    """What the shim in the script's process is told."""
    return {
        "observations": str(folder / OBSERVATIONS),
        "mode": "compile",
        "steps": 1,
        "replicas": wanted.replicas,
        "script": str(script),
        "root": str(root),
        "kind": kind,
        "compile": {"folder": str(folder)},
    }


async def compile_step(
    wanted: Wanted, command: Command, compiler: Sequence[str], folder: Path, emit: Emit
) -> CompileReport:
    """Run the script up to its first step, lower that, and compile it for one core.

    `folder` is the one of the settings. Whatever ends this ends both processes. Raises
    OperationFailed where the script ends before its step, Refused where it has none.
    """
    door = Door(folder)
    await door.open()
    environment = {"PATH": command.environment.get("PATH", ""), "LC_ALL": "C.UTF-8"}
    tpu = Compiler(compiler, environment, folder / "compiler.log")
    running = asyncio.ensure_future(
        run(command, folder / "script", seconds=BEFORE_STEP_SECONDS * 8, look=lambda: None)
    )
    try:
        with step(emit, f"script/{wanted.script}", "run", "up to its first step") as taking:
            told = await _first(door, running, folder / "script" / "log", taking.report)
            if told["kind"] == "captured":
                taking.result = f"{told['function']} taken"
        return await _Compilation(wanted, door, tpu, emit).report(told)
    except HungUp as error:
        raise OperationFailed(
            "Compiling ended early",
            str(error) or _tail(folder / "script" / "log", "the script's process went away"),
            hint="It needs up to 8 GB of this machine's memory.",
        ) from None
    finally:
        await door.close()
        await tpu.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _first(
    door: Door, running: asyncio.Future[Exit], log: Path, report: Any
) -> dict[str, Any]:
    """What the script's process says at its first step. Raises where it never comes there."""
    coming = asyncio.ensure_future(door.first())
    try:
        while not coming.done():
            both: set[asyncio.Future[Any]] = {coming, running}
            await asyncio.wait(both, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not coming.done():
                await asyncio.wait({coming}, timeout=TICK_SECONDS)
                if not coming.done():
                    raise _ended(running.result(), log, log.parents[1] / OBSERVATIONS)
            lines = last_lines(log, 1)
            if lines:
                report(lines[0][:100])
        told = coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    if told["kind"] == "nothing":
        raise Refused(
            "No training step was found",
            "the script came to its end; looked for: " + "; ".join(told["looked_for"]),
            hint="Train with Keras' fit, with strategy.run, or with a tf.function that takes a "
            "batch and has the gradients in it.",
        )
    if told["kind"] == "failed":
        raise OperationFailed(
            "Step cannot be taken",
            told["traceback"].strip(),
            hint=(
                "Mend what the traceback tells, or see what the step does without compiling it:\n"
                "    tpuctl rehearse SCRIPT"
            ),
        )
    return told


def _ended(ended: Exit, log: Path, observations: Path) -> OperationFailed | Refused:
    failed = [one for one in read(observations) if isinstance(one, ShimFailed)]
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

    def __init__(self, wanted: Wanted, door: Door, tpu: Compiler, emit: Emit) -> None:
        self.wanted, self.door, self.tpu, self.emit = wanted, door, tpu, emit
        self.answers: dict[int | None, Answer] = {}
        self.refusals: dict[int | None, Refusal] = {}
        self.lowered: dict[str, Any] = {}

    async def report(self, told: dict[str, Any]) -> CompileReport:
        wanted = self.wanted
        found = CompileReport(
            script=wanted.script,
            type=wanted.type,
            generation=wanted.generation,
            replicas=wanted.replicas,
            tensorflow=str(told.get("tensorflow", LOWERED_WITH)),
            runtime=wanted.runtime,
            notes=wanted.notes,
        )
        if told["kind"] == "refused":
            return replace(found, refusal=_refusal(told))
        found = replace(
            found,
            function=told["function"],
            where=place(told["where"]),
            inputs=tuple((kind, tuple(shape)) for kind, shape in told["inputs"]),
        )
        batch = told["batch"] if wanted.batch is None else wanted.batch // wanted.replicas
        if told["has_batch"] and batch is None:
            batch = UNKNOWN
            note = f"the script's batches are not all of one size: {batch} a core was asked about"
            found = replace(found, notes=(*found.notes, note))
        if not told["has_batch"] and wanted.batch is not None:
            raise Usage(
                "The step has no batch",
                "none of its arguments is a tensor",
                where="--batch",
                hint="Leave --batch out, or have the step take its data as arguments.",
            )
        asked = await self.ask(batch)
        if asked is None:
            return replace(found, refusal=self.refusals[batch])
        found = replace(
            found,
            requested=asked,
            available_bytes=await self._room(),
            dynamic_dimensions=self.lowered["dynamic"],
            has_bfloat16=self.lowered["has_bfloat16"],
            variable_bytes=self.lowered["held"],
        )
        if wanted.batch is not None or batch is None:
            return found
        return await self._search(found, asked)

    async def _search(self, found: CompileReport, asked: Answer) -> CompileReport:
        async def fits(batch: int) -> bool:
            answer = await self.ask(batch)
            return answer is not None and answer.sizes is not None

        most = await largest(fits, guess(asked, found.available_bytes))
        following = max(1, 2 * most)
        notes = found.notes
        if following in self.refusals:
            why = self.refusals[following]
            notes += (f"{following} a core was refused: {why.message.splitlines()[0][:300]}",)
        return replace(
            found,
            largest_batch=most,
            largest_is_exact=following in self.answers and 2 * most <= MOST,
            alternatives=tuple(one for one in self.answers.values() if one is not asked),
            notes=notes,
        )

    async def _room(self) -> int | None:
        answer = await self.tpu.ask(generation=self.wanted.generation)
        return room_of(answer.get("refused", ""))

    async def ask(self, batch: int | None) -> Answer | None:
        """What the compiler says of a batch; None, with a refusal kept, where it is not lowered."""
        if batch in self.answers or batch in self.refusals:
            return self.answers.get(batch)
        shown = "as it is" if batch is None else str(batch)
        with step(self.emit, f"batch/{shown}", "compile", self._where()) as asking:
            told = await _timed("lowering", self.door.ask(batch), asking)
            if told["kind"] == "refused":
                self.refusals[batch] = _refusal(told)
                asking.result = "cannot be lowered"
                return None
            if told["kind"] != "lowered":
                raise OperationFailed(
                    "Step cannot be lowered",
                    str(told.get("traceback", told)),
                    hint="What XLA cannot compile is mostly found, with what helps, by\n"
                    "    tpuctl check SCRIPT",
                )
            self.lowered = told
            program = Path(told["program"])
            compiling = self.tpu.ask(
                generation=self.wanted.generation,
                program=str(program),
                results=told["results"],
                changed=told["changed"],
            )
            said = await _timed("compiling", compiling, asking)
            program.unlink(missing_ok=True)
            if "failed" in said:
                self.refusals[batch] = Refusal(said["failed"], "compiler")
                asking.result = "refused"
                return None
            words = said.get("refused", "")
            sizes = None
            if not words:
                sizes = Sizes(*(said[name] for name in Sizes.__dataclass_fields__))
            answer = Answer(batch, sizes, too_much(words) if words else "", words, said["seconds"])
            asking.result = (
                f"{sizes.peak / 1e9:.1f} GB" if sizes else f"refused: {answer.shortfall}"
            )
        self.answers[batch] = answer
        return answer

    def _where(self) -> str:
        return f"one core of {self.wanted.type}"


async def _timed(
    what: str, answering: Coroutine[Any, Any, dict[str, Any]], asking: Step
) -> dict[str, Any]:
    """Tell now and then how long it has been at it."""
    answer = asyncio.ensure_future(answering)
    try:
        asking.report(what)
        began = asking.seconds
        while not answer.done():
            await asyncio.wait({answer}, timeout=TOLD_SECONDS)
            if not answer.done():
                asking.report(f"{what} for {asking.seconds - began:.0f} s")
        return answer.result()
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


def _refusal(told: dict[str, Any]) -> Refusal:
    obstacles = [Obstacle(one["operation"], place(one["where"])) for one in told["operations"]]
    obstacles.sort(
        key=lambda one: (
            one.where is None,
            one.where and (one.where.file, one.where.line),
            one.operation,
        )
    )
    return Refusal(told["message"], told["by"], place(told["where"]), tuple(obstacles))
