"""Hooks for PyTorch, with and without XLA: steps, compilations, reads and operations on the host.

A step ends with a call of an optimizer's `step`; with XLA, with the synchronization that follows
it. Of several optimizers, the first one counts, unless another is called more often.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ....simulated_tpu.script_calls import call_script
from ..observation.context import Rehearsal
from ..observation.user_lines import Where
from ..observation.xla_dumps import XlaDumps

STEP, OTHERS = "the step", "other operations"  # names of what is compiled
PROGRAM = "SyncTensorsGraph"  # XLA's name for all programs
# Methods of tensors that need their values.
READS = (
    *("item", "tolist", "numpy", "cpu", "to", "__array__", "__repr__", "__format__"),
    *("__bool__", "__int__", "__float__", "__index__"),
)
READ_OPERATION = "aten::_local_scalar_dense"  # of `item`
OPERATIONS = "aten::"  # counters of operations that XLA does not have
MAX_INPUTS = 20  # of a step
NANOSECONDS = 1e9


class Counts(NamedTuple):
    """How often XLA compiled, how long that took, and how often values were read, so far."""

    compilations: int
    seconds: float
    reads: int


class TorchTraining:
    """Observes the training of a script."""

    def __init__(self, rehearsal: Rehearsal, torch: Any, dumps: XlaDumps | None) -> None:
        self.rehearsal, self.torch, self.dumps = rehearsal, torch, dumps
        self.xla: Any = None  # the extension module of torch_xla, once imported
        self.calls: dict[int, int] = {}  # of `step`, by optimizer
        self.optimizers: list[Any] = []  # kept, because `calls` has their identities
        self.main: Any = None  # the optimizer whose calls are the steps
        self.loss: Any = None  # the tensor of the last call of `backward`
        self.loss_read: float | None = None  # its value, if the script read it
        self.updated_at: Where | None = None  # the call of the optimizer
        self.is_pending = False  # a synchronization has to follow that call
        self.is_inside = False  # an observed call, or one of this class
        self.is_sharded = False
        self.inputs: list[tuple[str, list[int]]] = []  # moved to the device since the last step
        self.counts = Counts(0, 0.0, 0)
        # How often operations ran on the host, up to the last step and to the last call.
        self.in_steps: dict[str, int] = {}
        self.in_calls: dict[str, int] = {}
        self.lines: dict[str, Where | None] = {}  # of these operations
        self.has_hidden_reads = False  # by operations at unknown lines
        self.is_tracing_operations = False

    def install(self) -> None:
        """Observe PyTorch after its import."""
        attempt = self.rehearsal.writer.attempt
        attempt("backward", self._watch_backward)
        attempt("optimizers", self._watch_optimizers)
        loader = importlib.import_module("torch.utils.data.dataloader")
        attempt("loaders", self._watch_waits, loader._BaseDataLoaderIter, "__next__")

    def install_xla(self, torch_xla: Any) -> None:
        """Observe PyTorch/XLA after its import."""
        attempt = self.rehearsal.writer.attempt
        self.xla = torch_xla._XLAC
        attempt("synchronization", self._watch_sync)
        attempt("reads of values", self._watch_reads)
        attempt("modules", self._watch_moves)

    def install_sharding(self, sharding: Any) -> None:
        """Observe whether anything is sharded (torch_xla.distributed.spmd.xla_sharding)."""
        original = sharding._translate_named_partition_spec

        @functools.wraps(original)
        def translate(mesh: Any, partition_spec: Any) -> Any:
            self.is_sharded = self.is_sharded or any(axis is not None for axis in partition_spec)
            return call_script(original, mesh, partition_spec)

        sharding._translate_named_partition_spec = translate

    def install_loader(self, loader: Any) -> None:
        """Observe batches on devices (torch_xla.distributed.parallel_loader)."""
        self._watch_waits(loader.PerDeviceLoader, "next")

    # steps

    def _watch_backward(self) -> None:
        autograd = self.torch.autograd
        original = autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.rehearsal.is_observed:
                self.rehearsal.writer.attempt("the loss", self._record_loss, tensors)
            return call_script(original, tensors, *arguments, **keywords)

        autograd.backward = backward

    def _record_loss(self, tensors: Any) -> None:
        if self.rehearsal.steps.count == 0:
            self.rehearsal.steps.begin()
        roots = [tensors] if self.torch.is_tensor(tensors) else list(tensors)
        if len(roots) == 1 and roots[0].numel() == 1:
            self.loss = roots[0]

    def _watch_optimizers(self) -> None:
        module = importlib.import_module("torch.optim.optimizer")

        def before(optimizer: Any, *_: Any) -> None:
            if optimizer is self.main and self.is_pending and self.rehearsal.is_observed:
                self._end_unsynchronized_step()

        def after(optimizer: Any, *_: Any) -> None:
            attempt = self.rehearsal.writer.attempt
            if self.rehearsal.is_observed and attempt("an update", self._record_update, optimizer):
                self._end_step()

        module.register_optimizer_step_pre_hook(before)
        module.register_optimizer_step_post_hook(after)

    def _record_update(self, optimizer: Any) -> bool:
        """Whether a call of the optimizer ends a step: without XLA."""
        if self._is_other_rank():
            return False
        key = id(optimizer)
        if key not in self.calls:
            self.optimizers.append(optimizer)
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.main is None:
            self.rehearsal.report_torch()
        if self.main is None or self.calls[key] > self.calls[id(self.main)]:
            self.main = optimizer
        if optimizer is not self.main:
            return False
        if self._is_on_xla():
            self.updated_at, self.is_pending = self.rehearsal.user_lines.current(), True
            return False
        self.rehearsal.record_eager()
        return True

    def _end_step(self) -> None:
        """Record a step."""
        attempt, is_xla = self.rehearsal.writer.attempt, self.is_pending
        self.is_inside = True
        try:
            if is_xla:
                attempt("the devices", self.xla._xla_wait_device_ops, [])
                attempt("operations", self._record_fallbacks)
            loss = attempt("the loss", self._read_loss)
            if self.rehearsal.steps.remaining == 1:
                attempt("the parameters", self._check_parameters)
            if is_xla:
                self.counts = attempt("counters", self._current_counts) or self.counts
        finally:
            self.is_inside = False
        examples = next((dims[0] for _, dims in self.inputs), None)
        self.is_pending, self.inputs = False, []
        self.loss = self.loss_read = None
        self._write_step(loss, examples)

    def _end_unsynchronized_step(self) -> None:
        """Record a step at the update of the next one: it was not run, except for what was read."""
        rehearsal = self.rehearsal
        rehearsal.writer.write(
            "unsynchronized", where=self.updated_at, after_step=rehearsal.steps.count
        )
        rehearsal.writer.attempt("operations", self._record_fallbacks)
        loss, self.is_pending, self.loss_read = self.loss_read, False, None
        self._write_step(loss, None)

    def _write_step(self, loss: float | None, examples: int | None) -> None:
        """After the last step, this ends the script."""
        steps = self.rehearsal.steps
        was_waiting = steps.end_wait()
        steps.end(loss, examples)
        if was_waiting:
            steps.begin_wait()

    def _read_loss(self) -> float | None:
        return None if self.loss is None else float(self.loss.detach())

    def _check_parameters(self) -> None:
        """Write how many parameters are not finite after the last step."""
        torch = self.torch
        parameters = [weight for group in self.main.param_groups for weight in group["params"]]
        with torch.no_grad():
            flags = [torch.isfinite(parameter).all() for parameter in parameters]
            count = sum(not flag for flag in torch.stack(flags).tolist())
        if count:
            step = self.rehearsal.steps.count + 1
            self.rehearsal.writer.write(
                "nonfinite", parameters=count, total=len(parameters), after_step=step
            )

    # what XLA does

    def _watch_sync(self) -> None:
        original = self.xla._xla_step_marker

        @functools.wraps(original)
        def sync(*arguments: Any, **keywords: Any) -> Any:
            if self.is_inside or not self.rehearsal.is_observed:
                return call_script(original, *arguments, **keywords)
            result = self._counted(functools.partial(original, *arguments, **keywords))
            if self.is_pending:
                self._end_step()
            return result

        self.xla._xla_step_marker = sync

    def _watch_reads(self) -> None:
        for name in READS:
            original = getattr(self.torch.Tensor, name, None)
            if original is not None:
                setattr(self.torch.Tensor, name, self._watch_read(original))

    def _watch_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
            call = functools.partial(original, tensor, *arguments, **keywords)
            if self.is_inside or not self.rehearsal.is_observed:
                return call_script(call)
            if tensor.device.type != "xla":
                result = call_script(call)
                if self.torch.is_tensor(result):
                    self.rehearsal.writer.attempt("the batch", self._record_inputs, result)
                return result
            result = self._counted(call)
            if tensor is self.loss and isinstance(result, float):
                self.loss_read = result
            return result

        return read

    def _watch_moves(self) -> None:
        """Moving a model to the device is not observed: its tensors are not the step's inputs."""
        original = self.torch.nn.Module._apply

        @functools.wraps(original)
        def apply(*arguments: Any, **keywords: Any) -> Any:
            if self.is_inside or not self.rehearsal.is_observed:
                return call_script(original, *arguments, **keywords)
            self.is_inside = True
            try:
                return call_script(original, *arguments, **keywords)
            finally:
                self.is_inside = False

        self.torch.nn.Module._apply = apply

    def _counted(self, call: Callable[[], Any]) -> Any:
        """Make a call of the script, and record what XLA does meanwhile."""
        attempt, where = self.rehearsal.writer.attempt, self.rehearsal.user_lines.current()
        before = attempt("counters", self._current_counts) or self.counts
        if before != self.counts:  # since the last call
            self.has_hidden_reads = self.has_hidden_reads or before.reads > self.counts.reads
            attempt("counters", self._record_compilation, self.counts, before, None, False)
        if self.is_tracing_operations:
            attempt("operations", self._changed, self.in_calls)
        self.is_inside = True
        try:
            result = call_script(call)
        finally:
            self.is_inside = False
        self.counts = attempt("counters", self._current_counts) or before
        trains = self.is_pending or self.loss is not None
        attempt("counters", self._record_compilation, before, self.counts, where, trains)
        fallbacks: list[str] = []
        if self.is_tracing_operations:
            fallbacks = attempt("operations", self._changed, self.in_calls) or []
            self.lines.update(dict.fromkeys(fallbacks, where))
        if self.counts.reads > before.reads and not fallbacks:
            attempt("counters", self.rehearsal.record_read, where)
        return result

    def _record_compilation(
        self, before: Counts, after: Counts, where: Where | None, trains: bool
    ) -> None:
        if after.compilations == before.compilations:
            return
        name = STEP if trains else OTHERS
        program = self.dumps.program_of(PROGRAM, name) if self.dumps is not None else {}
        self.rehearsal.writer.write(
            "compiled",
            function=name,
            where=where,
            seconds=round(after.seconds - before.seconds, 3),
            shapes=self.inputs[:MAX_INPUTS],
            trains=trains,
            devices=self._device_count(),
            **program,
        )

    def _record_inputs(self, value: Any) -> None:
        """Record the shapes of tensors that are on an XLA device now."""
        for tensor in self._tensors(value):
            if tensor.device.type == "xla" and tensor.dim():
                dtype = str(tensor.dtype).rpartition(".")[2]
                self.inputs.append((dtype, list(tensor.shape)))

    def _tensors(self, value: Any) -> Iterator[Any]:
        if self.torch.is_tensor(value):
            yield value
        elif isinstance(value, dict):
            for part in value.values():
                yield from self._tensors(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                yield from self._tensors(part)

    def _record_fallbacks(self) -> None:
        """Record operations that XLA does not have, and look for their lines in later steps."""
        for name in self._changed(self.in_steps):
            self.rehearsal.writer.write(
                "fallback",
                operation=name,
                where=self.lines.get(name),
                after_step=self.rehearsal.steps.count,
            )
        if (self.in_steps or self.has_hidden_reads) and not self.is_tracing_operations:
            self._trace_operations()

    def _changed(self, counts: dict[str, int]) -> list[str]:
        """The operations that ran on the host since `counts`, which are updated."""
        changed = []
        for name in self.xla._xla_counter_names():
            if name.startswith(OPERATIONS) and name != READ_OPERATION:
                count = self.xla._xla_counter_value(name)
                if count != counts.get(name, 0):
                    counts[name] = count
                    changed.append(name)
        return changed

    def _trace_operations(self) -> None:
        """Find the lines of operations that need the host, from now on."""
        self.is_tracing_operations = True
        base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
        training = self

        class Tracing(base):  # type: ignore[misc, valid-type]
            def __torch_dispatch__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                call = functools.partial(function, *args, **(kwargs or {}))
                return training._trace_operation(call)

        Tracing().__enter__()

    def _trace_operation(self, call: Callable[[], Any]) -> Any:
        if self.is_inside or not self.rehearsal.is_observed:
            return call_script(call)
        return self._counted(call)

    def _current_counts(self) -> Counts:
        compilations, nanoseconds = (self.xla._xla_metric_data("CompileTime") or (0, 0))[:2]
        reads = (self.xla._xla_metric_data("TransferFromDeviceTime") or (0,))[0]
        return Counts(compilations, nanoseconds / NANOSECONDS, reads)

    def _device_count(self) -> int:
        """The number of devices that share the step's work."""
        is_spmd = importlib.import_module("torch_xla.runtime").is_spmd()
        return self.rehearsal.settings.torch_devices if is_spmd and self.is_sharded else 1

    # data

    def _watch_waits(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def load(iterator: Any) -> Any:
            if not self.rehearsal.is_observed:
                return call_script(original, iterator)
            self.rehearsal.steps.begin_wait()
            try:
                batch = call_script(original, iterator)
            finally:
                self.rehearsal.steps.end_wait()
            if self.xla is not None:
                self.rehearsal.writer.attempt("the batch", self._record_inputs, batch)
            return batch

        setattr(kind, name, load)

    # what is observed

    def _is_on_xla(self) -> bool:
        parameters = (weight for group in self.main.param_groups for weight in group["params"])
        return self.xla is not None and any(
            parameter.device.type == "xla" for parameter in parameters
        )

    def _is_other_rank(self) -> bool:
        """Whether another process of the script trains the same model, and is observed."""
        distributed = self.torch.distributed
        return bool(
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_rank() != 0
        )
