"""One compilation: run the script up to its first step, lower the step, and compile it."""

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
    largest_fitting,
    memory_limit,
)
from tpuctl.preflight.compile.compile_report import (
    BatchResult,
    Collective,
    CompileReport,
    Obstacle,
    Refusal,
    Sizes,
    source_line,
)
from tpuctl.preflight.compile.protocol import Compiler, Disconnected, ScriptSocket
from tpuctl.preflight.rehearsal.observations import ShimFailed, read
from tpuctl.preflight.rehearsal.script_process import Command, Exit, last_lines, run
from tpuctl.units import decimal_size

LOWERED_WITH = "2.18.0"
BEFORE_STEP_SECONDS = 1800.0  # until the first step: data may have to be read
SLOW_SECONDS = 20.0
TICK_SECONDS = 1.0
REPORT_SECONDS = 10.0
OBSERVATIONS = "observations.jsonl"
TRAINING_HINT = (
    "Train with Keras fit, with strategy.run, or with a tf.function that takes a batch and "
    "computes the gradients; with JAX, with a function under jax.jit that computes the gradients."
)
DEFAULT_BATCH = 32  # per core, if the script does not set one


@dataclass(frozen=True)
class CompileRequest:
    """What to compile, and the TPU type. `batch` is over all replicas; None means the script's
    batch size and then the largest."""

    script: str  # as given by the user
    type: str
    generation: str
    replicas: int
    runtime: str | None  # the TensorFlow of the type's runtime
    batch: int | None = None
    notes: tuple[str, ...] = ()
    is_jax: bool = False
    topology: str = ""  # of a slice, such as 2x2
    hosts: int = 1  # of a slice
    slices: int = 1  # that JAX compiles for together


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
        "devices": request.replicas,
        "slices": request.slices,
        "compile": {
            "folder": str(folder),
            "topology": _topology(request) if request.is_jax else None,
        },
    }


def _topology(request: CompileRequest) -> dict[str, Any]:
    """The slices, as arguments of JAX's `get_topology_desc`."""
    sizes = [*map(int, request.topology.split("x")), 1][:3]
    options: dict[str, Any] = {
        "topology_name": f"{request.generation}:{request.topology}",
        # A slice of one host may have 1, 2, 4 or 8 chips; all hosts of larger slices have 4.
        "chips_per_host_bounds": sizes if request.hosts == 1 else [2, 2, 1],
    }
    if request.generation == "v4":  # both TensorCores of a chip act as one device
        options["chip_config_name"] = "megacore"
    if request.slices > 1:
        options["num_slices"] = request.slices
    return options


async def compile_step(
    request: CompileRequest, command: Command, compiler: Sequence[str], folder: Path, emit: Emit
) -> CompileReport:
    """Run the script up to its first step, lower that, and compile it for one core.

    The process of a JAX script compiles, too; `compiler` is not started then.

    `folder` is the one passed to `settings_of`. Both processes are stopped on return. Raises
    OperationFailed if the script exits before its step, Refused if it has none.
    """
    socket = ScriptSocket(folder, command.restore_json)
    await socket.open()
    environment = {"PATH": command.environment.get("PATH", ""), "LC_ALL": "C.UTF-8"}
    tpu = Compiler(compiler, environment, folder / "compiler.log")
    running = asyncio.ensure_future(
        run(command, folder / "script", seconds=BEFORE_STEP_SECONDS * 8, poll=lambda: None)
    )
    try:
        with step(emit, f"script/{request.script}", "run", "up to its first step") as progress:
            captured = await _first(socket, running, folder / "script" / "log", progress.report)
            if captured["kind"] == "captured":
                progress.result = f"captured {captured['function']}"
        return await _Compilation(request, socket, tpu, emit).report(captured)
    except Disconnected as error:
        raise OperationFailed(
            "Compilation ended early",
            str(error)
            or command.restore(_tail(folder / "script" / "log", "the script's process exited")),
            hint="Compiling needs up to 8 GB of memory on this machine.",
        ) from None
    finally:
        await socket.close()
        await tpu.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _first(
    socket: ScriptSocket, running: asyncio.Future[Exit], log: Path, report: Any
) -> dict[str, Any]:
    """The message of the script's process at its first step. Raises if it never gets there."""
    connecting = asyncio.ensure_future(socket.first_message())
    try:
        while not connecting.done():
            tasks: set[asyncio.Future[Any]] = {connecting, running}
            await asyncio.wait(tasks, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not connecting.done():
                await asyncio.wait({connecting}, timeout=TICK_SECONDS)
                if not connecting.done():
                    raise _early_exit(running.result(), log, log.parents[1] / OBSERVATIONS)
            lines = last_lines(log, 1)
            if lines:
                report(lines[0][:100])
        captured = connecting.result()
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
    if captured["kind"] == "failed":
        raise OperationFailed(
            "Failed to capture the step",
            captured["traceback"].strip(),
            hint="Fix the error in the traceback, or run the step without compiling it:\n"
            "    tpuctl rehearse SCRIPT",
        )
    return captured


def _early_exit(exit: Exit, log: Path, observations: Path) -> OperationFailed | Refused:
    failed = [failure for failure in read(observations) if isinstance(failure, ShimFailed)]
    if failed:
        message = f"{failed[-1].action}\n{failed[-1].traceback.strip()}"
        return OperationFailed("Failed to capture the step", message, hint="This is a tpuctl bug.")
    if exit.code == 0:
        return Refused(
            "No training step was found",
            "the script ended without one",
            hint=TRAINING_HINT,
        )
    code = "" if exit.code is None else f"it exited with code {exit.code}"
    return OperationFailed(
        "Script ended before its first step",
        _tail(log, code),
        hint="Fix the error, then run the command again.",
    )


def _tail(log: Path, first_line: str) -> str:
    return "\n".join([first_line, *last_lines(log, 12)]).strip()


class _Compilation:
    """Lowers and compiles a captured step."""

    def __init__(
        self, request: CompileRequest, socket: ScriptSocket, tpu: Compiler, emit: Emit
    ) -> None:
        self.request, self.socket, self.tpu, self.emit = request, socket, tpu, emit
        self.results: dict[int | None, BatchResult] = {}
        self.refusals: dict[int | None, Refusal] = {}
        self.collectives: dict[int | None, tuple[Collective, ...]] = {}
        self.lowered: dict[str, Any] = {}

    async def report(self, captured: dict[str, Any]) -> CompileReport:
        request = self.request
        report = CompileReport(
            script=request.script,
            type=request.type,
            generation=request.generation,
            replicas=int(captured["replicas"]) if "jax" in captured else request.replicas,
            tensorflow=None if request.is_jax else captured.get("tensorflow", LOWERED_WITH),
            runtime=request.runtime,
            notes=request.notes,
            topology=request.topology if request.is_jax else "",
            slices=request.slices,
            jax=captured.get("jax"),
            libtpu=captured.get("libtpu"),
        )
        if captured["kind"] == "refused":
            return replace(report, refusal=_refusal(captured))
        report = replace(
            report,
            function=captured["function"],
            where=source_line(captured["where"]),
            inputs=tuple((kind, tuple(shape)) for kind, shape in captured["inputs"]),
        )
        if request.is_jax:
            report = replace(report, notes=(*report.notes, *_device_notes(request, captured)))
        batch = captured["batch"] if request.batch is None else request.batch // report.replicas
        if captured["has_batch"] and batch is None:
            batch = DEFAULT_BATCH
            note = f"the script's batches differ in size: compiled for {batch} {self._per}"
            report = replace(report, notes=(*report.notes, note))
        looped = captured.get("looped")
        if looped is not None:
            note = f"the batch is unknown: the step loops over the first dimension of {looped}"
            report = replace(report, notes=(*report.notes, note))
        if not captured["has_batch"] and request.batch is not None:
            raise _no_batch(looped)
        result = await self.compile_batch(batch)
        if result is None:
            return replace(report, refusal=self.refusals[batch])
        report = replace(
            report,
            requested=result,
            available_bytes=await self._available_bytes(),
            dynamic_dimensions=self.lowered.get("dynamic", 0),
            has_bfloat16=self.lowered["has_bfloat16"],
            variable_bytes=self.lowered["variable_bytes"],
            collectives=self.collectives.get(batch),
        )
        if request.is_jax and not self.lowered["is_donated"]:
            note = "no argument is donated: the old and the new state are in memory together"
            report = replace(report, notes=(*report.notes, note))
        if request.batch is not None or batch is None:
            return report
        return await self._search(report, result)

    async def _search(self, report: CompileReport, first_result: BatchResult) -> CompileReport:
        slow: list[int] = []

        async def fits(batch: int) -> bool:
            if self._is_growing_slow(batch):
                slow.append(batch)
                return False
            result = await self.compile_batch(batch)
            return result is not None and result.sizes is not None

        largest = await largest_fitting(fits, first_batch(first_result, report.available_bytes))
        following = max(1, 2 * largest)
        notes = report.notes
        if following in self.refusals:
            reason = self.refusals[following]
            message = reason.message.splitlines()[0][:300]
            notes += (f"{following} {self._per} was rejected: {message}",)
        if following in slow:
            notes += (f"{following} {self._per} was not tried: it would take minutes to compile",)
        return replace(
            report,
            largest_batch=largest,
            largest_is_exact=following in self.results and 2 * largest <= MAX_BATCH,
            alternatives=tuple(
                other for other in self.results.values() if other is not first_result
            ),
            notes=notes,
        )

    def _is_growing_slow(self, batch: int) -> bool:
        """Whether larger batches take ever longer to compile, usually only those of toys."""
        last, previous = self.results.get(batch // 2), self.results.get(batch // 4)
        if last is None or previous is None or batch in self.results:
            return False
        return last.seconds > SLOW_SECONDS and last.seconds > 1.5 * previous.seconds

    async def _available_bytes(self) -> int | None:
        if self.request.is_jax:
            return memory_limit(self.lowered["limit"])
        reply = await self.tpu.query(generation=self.request.generation)
        return memory_limit(reply.get("refused", ""))

    async def compile_batch(self, batch: int | None) -> BatchResult | None:
        """Compile for a batch size; None if that fails, with the reason in `refusals`."""
        if batch in self.results or batch in self.refusals:
            return self.results.get(batch)
        label = "as it is" if batch is None else str(batch)
        with step(self.emit, f"batch/{label}", "compile", self._where()) as progress:
            activity = "compiling" if self.request.is_jax else "lowering"
            lowered = await _timed(activity, self.socket.lower(batch), progress)
            if lowered["kind"] == "refused":
                self.refusals[batch] = _refusal(lowered)
                progress.result = "not lowered"
                return None
            if lowered["kind"] not in ("lowered", "compiled"):
                raise OperationFailed(
                    "Failed to lower the step",
                    str(lowered.get("traceback", lowered)),
                    hint="Check the script for operations that XLA cannot compile:\n"
                    "    tpuctl check SCRIPT",
                )
            self.lowered = lowered
            compiled = lowered
            if lowered["kind"] == "lowered":
                compiled = await self._compile(lowered, progress)
            if "failed" in compiled:
                self.refusals[batch] = Refusal(compiled["failed"], "compiler")
                progress.result = "rejected"
                return None
            message = compiled.get("refused", "")
            sizes = None
            if not message:
                sizes = Sizes(*(compiled[name] for name in Sizes.__dataclass_fields__))
            self.collectives[batch] = tuple(
                Collective(operation, *numbers)
                for operation, numbers in sorted(compiled.get("collectives", {}).items())
            )
            result = BatchResult(
                batch, sizes, excess_text(message) if message else "", message, compiled["seconds"]
            )
            progress.result = (
                decimal_size(sizes.peak) if sizes else f"does not fit: {result.shortfall}"
            )
        self.results[batch] = result
        return result

    async def _compile(self, lowered: dict[str, Any], progress: Step) -> dict[str, Any]:
        program = Path(lowered["program"])
        compiling = self.tpu.query(
            generation=self.request.generation,
            program=str(program),
            results=lowered["results"],
            updated_variables=lowered["updated_variables"],
        )
        compiled = await _timed("compiling", compiling, progress)
        program.unlink(missing_ok=True)
        return compiled

    @property
    def _per(self) -> str:
        return "per device" if self.request.is_jax else "per core"

    def _where(self) -> str:
        request = self.request
        if not request.is_jax:
            return f"one core of {request.type}"
        slices = f" of {request.slices} slices" if request.slices > 1 else ""
        return f"the topology{slices} of {request.type}"


def _no_batch(looped: str | None) -> Usage:
    """The batch size was given for a step without a known batch, perhaps since it loops over the
    first dimension of an argument."""
    if looped is not None:
        return Usage(
            "The step's batch is unknown",
            f"the step loops over the first dimension of {looped}",
            where="--batch",
            hint="Omit --batch to compile the step for the script's own shapes.",
        )
    return Usage(
        "The step has no batch",
        "none of its arguments is a tensor",
        where="--batch",
        hint="Omit --batch, or pass the data to the step as arguments.",
    )


def _device_notes(request: CompileRequest, captured: dict[str, Any]) -> list[str]:
    """What limits the use of the slice's devices."""
    devices = int(captured["devices"])
    if devices < request.replicas:
        return [f"the step uses {devices} of {request.replicas} devices: shard its batch"]
    if int(captured["replicas"]) < devices and captured["has_batch"]:
        return [f"the batch is not a multiple of the {devices} devices: not divided"]
    return []


async def _timed(
    activity: str, request: Coroutine[Any, Any, dict[str, Any]], progress: Step
) -> dict[str, Any]:
    """Wait for a reply, reporting the elapsed time every few seconds."""
    reply = asyncio.ensure_future(request)
    try:
        progress.report(activity)
        began = progress.seconds
        while not reply.done():
            await asyncio.wait({reply}, timeout=REPORT_SECONDS)
            if not reply.done():
                progress.report(f"{activity} for {progress.seconds - began:.0f} s")
        return reply.result()
    finally:
        reply.cancel()
        await asyncio.gather(reply, return_exceptions=True)


def _refusal(reply: dict[str, Any]) -> Refusal:
    obstacles = [
        Obstacle(operation["operation"], source_line(operation["where"]))
        for operation in reply["operations"]
    ]
    obstacles.sort(
        key=lambda obstacle: (
            obstacle.where is None,
            obstacle.where and (obstacle.where.file, obstacle.where.line),
            obstacle.operation,
        )
    )
    return Refusal(reply["message"], reply["origin"], source_line(reply["where"]), tuple(obstacles))
