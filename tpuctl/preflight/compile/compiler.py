"""Compiles lowered steps with the TPU compiler, which does not need a TPU.

Runs as a separate program in an environment with jax[tpu]; tpuctl never imports it. Requests and
replies are JSON lines. {"generation": "v3", "program": FILE, "results": 2, "updated_variables": [0,
3]} requests a program's memory use on a core, {"generation": "v3"} a core's memory limit. Replies
contain sizes in bytes, `refused` with the compiler's message for lack of memory, or `failed` with
the message of any other error. Uses private JAX APIs, so JAX's version is pinned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # do not query a metadata server for TPUs
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # there is no TPU to lock

import jax  # type: ignore[import-not-found, unused-ignore]
import numpy  # type: ignore[import-not-found, unused-ignore]
from jax._src import compiler  # type: ignore[import-not-found, unused-ignore]
from jax._src.interpreters import mlir  # type: ignore[import-not-found, unused-ignore]
from jax._src.lib import _jax, xla_client  # type: ignore[import-not-found, unused-ignore]
from jax.experimental import topologies  # type: ignore[import-not-found, unused-ignore]
from jaxlib.mlir import ir  # type: ignore[import-not-found, unused-ignore]

# The smallest slice of each generation. Both TensorCores of a v4 chip act as one device.
TOPOLOGIES = {
    "v2": {"topology_name": "v2:2x2"},
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    "v5e": {"topology_name": "v5e:2x2"},
    "v5p": {"topology_name": "v5p:2x2x1"},
    "v6e": {"topology_name": "v6e:2x2"},
}
# Larger than any core's memory, in addressable parts; the error message contains the limit.
PART = "tensor<17179869184xf32>"
OVERSIZED_PROGRAM = f"""
module @room {{
  func.func @main(%one: {PART}, %two: {PART}, %three: {PART}, %four: {PART}) -> {PART} {{
    %five = stablehlo.add %one, %two : {PART}
    %six = stablehlo.add %three, %four : {PART}
    %seven = stablehlo.add %five, %six : {PART}
    return %seven : {PART}
  }}
}}
"""


def compile_for(generation: str, text: bytes | str, results: int, changed: list[int]) -> Any:
    """Compile for one core; new values of variables reuse the memory of the old ones."""
    device = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[generation]).devices[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        main = next(
            statement
            for statement in module.body
            if statement.attributes["sym_name"].value == "main"
        )
        share(main, dict(zip(changed, count(results), strict=False)))
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(
            numpy.array([[device.id]], "int32")
        )
        devices = xla_client.DeviceList((device,))
        return compiler.backend_compile_and_load(device.client, module, devices, options, [])


def share(main: Any, results: dict[int, int]) -> None:
    """Alias results to arguments, as a TPU does for the new values of variables."""
    number = ir.IntegerType.get_signless(32)
    attributes: list[dict[str, Any]] = [{} for _ in ir.FunctionType(main.type).inputs]
    if "arg_attrs" in main.attributes:
        attributes = [
            {attribute.name: attribute.attr for attribute in ir.DictAttr(one_argument)}
            for one_argument in main.attributes["arg_attrs"]
        ]
    for argument, result in results.items():
        attributes[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(number, result)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([*map(ir.DictAttr.get, attributes)])


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    generation, program = request["generation"], request.get("program")
    try:
        if program is None:
            executable = compile_for(generation, OVERSIZED_PROGRAM, 1, [])
        else:
            text = _jax.mlir.hlo_to_stablehlo(Path(program).read_bytes())
            updated = request["updated_variables"]
            executable = compile_for(generation, text, request["results"], updated)
    except jax.errors.JaxRuntimeError as error:
        kind = "refused" if "RESOURCE_EXHAUSTED" in str(error) else "failed"
        return {kind: str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    sizes = executable.get_compiled_memory_stats()
    return {
        "arguments": sizes.argument_size_in_bytes,
        "results": sizes.output_size_in_bytes,
        "shared": sizes.alias_size_in_bytes,
        "temporary": sizes.temp_size_in_bytes,
        "code": sizes.generated_code_size_in_bytes,
    }


def main() -> None:
    # Keep libtpu's output out of the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        began = time.monotonic()
        result = reply_to(json.loads(line))
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({**result, "seconds": seconds}), file=replies, flush=True)


if __name__ == "__main__":
    main()
