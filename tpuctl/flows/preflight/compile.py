"""Compile a script's training step with the TPU compiler on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import (
    FIRST_LIBTPU,
    TENSORFLOW_GENERATIONS,
    AcceleratorType,
    announced_tpu,
    nearest_types,
    runtime_for,
    type_named,
)
from tpuctl.engine.step import step
from tpuctl.errors import Diagnostic, OperationFailed, Refused, Usage
from tpuctl.files import cache_home, private_folder
from tpuctl.flows.preflight.job_folders import JobFolder
from tpuctl.model.events import Note, WarningIssued
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.jobs.job import as_argument
from tpuctl.model.scripts.framework import FrameworkChoice
from tpuctl.model.scripts.requirement_files import allows

if TYPE_CHECKING:
    from tpuctl.flows.preflight.local_buckets import Sample
    from tpuctl.jobs.bundle import Bundle
    from tpuctl.model.events import Emit
    from tpuctl.model.stack.schema import JobSection
    from tpuctl.model.stack.stack import Stack
    from tpuctl.preflight.compile.compilation import CompileRequest
    from tpuctl.preflight.compile.compile_report import CompileReport
    from tpuctl.preflight.compile.environments import Environments, Kind
    from tpuctl.preflight.rehearsal.job_packages import Packages

TENSORFLOW_VARIABLES = {
    # Importing TensorFlow would wait minutes for a TPU.
    "TPU_LIBRARY_PATH": "/nonexistent",
    # transformers does not recognize the TensorFlow package built for TPUs.
    "FORCE_TF_AVAILABLE": "1",
}
KERAS_3 = (2, 16)  # the first TensorFlow whose tf.keras is Keras 3


async def compile_script(
    script: Path,
    arguments: Sequence[str],
    stack: Stack | None,
    emit: Emit,
    *,
    type_name: str | None = None,
    batch: int | None = None,
    variables: Mapping[str, str] | None = None,
    samples: Sequence[Sample] = (),
    python: str = "",
    may_install: Callable[[str], bool] = lambda question: False,
) -> CompileReport:
    """Compile the script's training step for the stack's type, or for `type_name`: for one core, or
    with JAX for the topology of all slices.

    The script runs unmodified up to its first step; nothing leaves this machine. `batch` is the
    global batch size, over all replicas; without it several are tried. `variables` are added to
    the script's environment, `samples` uploaded to the local cloud, which serves the script's
    gs:// paths. `python` is the job's, instead of `job.python` in the stack file. Missing
    environments are created; `may_install` decides whether uv may download the job's Python if it
    is missing. Raises Usage for invalid options, Refused on an unsupported
    machine and for PyTorch, OperationFailed if the script does not reach its first step.
    """
    from tpuctl.cloud.threads import in_thread
    from tpuctl.flows.preflight.local_buckets import on_local_cloud
    from tpuctl.local_cloud.machine_images import ImageStore
    from tpuctl.preflight.compile.compilation import compile_step, settings_of
    from tpuctl.preflight.compile.environments import (
        COMPILER,
        Environments,
        require_machine,
        require_platform,
    )
    from tpuctl.preflight.rehearsal.script_process import Command
    from tpuctl.preflight.submit_gate import check_script

    check_script(script)
    request = _compile_request(script, stack, type_name, batch)
    if stack is not None:
        stack = stack.with_python(python)
    installation = _installation(script, stack, python)
    minor = installation.python.minor if installation.python is not None else None
    require_platform() if request.is_jax else require_machine(minor)
    environments = Environments(minor=None if request.is_jax else minor)
    # The path of a Unix socket is limited to about 100 characters.
    base = "/tmp" if Path("/tmp").is_dir() else None
    scratch = tempfile.TemporaryDirectory(prefix="tpuctl-compile-", dir=base)
    with ImageStore().rehearsing(), scratch as name:
        bundle = await _bundle(script, stack, installation, emit)
        job_packages = _JobPackages(environments, script, bundle, stack, installation, emit)
        if request.is_jax:
            packages = await job_packages.for_jax(request.generation, may_install)
            compiler = packages.python
        else:
            packages = await job_packages.for_tensorflow()
            compiler = await _ensure_environment(Environments(), COMPILER, emit)  # of any Python
        folder = Path(name)
        kind = "node" if stack is not None and stack.is_node else "vm"
        code = await in_thread(JobFolder, bundle, folder.resolve() / "files")
        settings = folder / "settings.json"
        step_settings = settings_of(request, folder, code.path / bundle.script, code.path, kind)
        settings.write_text(json.dumps(step_settings), "utf-8")
        if stack is not None:
            stack = await on_local_cloud(stack, emit)
        job = _job_variables(stack, request, variables or {})
        cloud = await _local_cloud(bundle, arguments, stack, job, samples, emit)
        environment = _environment(job, cloud, packages, settings, folder)
        argv = [str(packages.python), as_argument(bundle.script), *arguments]
        program = Path(_shim().parent, "preflight", "compile", "compiler.py")
        command = Command(argv, code.path, environment, source=script.parent.resolve())
        try:
            return await compile_step(
                request, command, (str(compiler), "-I", str(program)), folder, emit
            )
        except OperationFailed as error:
            _name_left_out(error, script, stack)
            raise


def _installation(script: Path, stack: Stack | None, python: str) -> Installation:
    """What the job installs, with its Python; machines that are unknown have that of most."""
    from tpuctl.flows.packages.job_python import JobTarget, with_tools
    from tpuctl.jobs.requirements.installation import read_installation
    from tpuctl.model.stack.stack import RUNTIME_PYTHON

    job, folder = _job_of(stack), script.resolve().parent
    if python:
        job = job.model_copy(update={"python": python})
    image = RUNTIME_PYTHON if stack is None else stack.image_python
    where = "--python" if python else "job.python"
    target = JobTarget(image, platform.machine())
    return with_tools(job, read_installation(job, folder, script), folder, script, target, where)[0]


def _job_of(stack: Stack | None) -> JobSection:
    from tpuctl.model.stack.schema import JobSection

    return stack.file.job if stack is not None else JobSection()


def _name_left_out(error: OperationFailed, script: Path, stack: Stack | None) -> None:
    """Add to an error which file the script did not find, if it is not uploaded."""
    from tpuctl.jobs.upload_rules import find_left_out

    job = _job_of(stack)
    missing = find_left_out(str(error), script.parent, job.include, job.exclude, script.name)
    if missing is not None:
        name, exclusion = missing
        problem = Diagnostic("File is not uploaded", f"{name}: {exclusion.rule}", exclusion.remedy)
        error.diagnostics = (*error.diagnostics, problem)


def _compile_request(
    script: Path, stack: Stack | None, type_name: str | None, batch: int | None
) -> CompileRequest:
    from tpuctl.preflight.compile.compilation import LOWERED_WITH, CompileRequest

    if type_name is None and stack is None:
        raise Usage(
            "No TPU type to compile for",
            "no stack file and no --type",
            hint="Pass a type:\n    tpuctl rehearse --compile --type v5e-8 SCRIPT",
            where="--type",
        )
    accelerator = _accelerator(type_name or (stack.accelerator.name if stack is not None else ""))
    name, generation = accelerator.name, accelerator.generation
    nodes, slices = 1, 1
    runtime, topology = runtime_for(accelerator), accelerator.topology
    if stack is not None and name == stack.accelerator.name:
        nodes, slices = len(stack.nodes), stack.slices
        runtime, topology = stack.runtime, stack.file.tpu.topology or topology
    version = runtime.tensorflow if runtime is not None else None
    is_jax = _is_jax(script, stack, version)
    if is_jax and not topology:
        raise Refused(
            "Topology of the TPU type unknown",
            f"no topology of {name} was published",
            where="tpu.topology",
            hint="Set it in the stack file:\n    tpu: {topology: AxBxC}",
        )
    if not is_jax and generation not in TENSORFLOW_GENERATIONS:
        raise Refused(
            "TensorFlow does not support this TPU",
            f"{script.name} uses TensorFlow, which does not run on {generation}",
            where="tpu.type" if type_name is None else "--type",
            hint="Use JAX, or choose a type of another generation:\n    tpuctl types",
        )
    replicas = accelerator.devices * (slices if is_jax else nodes)
    if batch is not None and (batch < 1 or batch % replicas):
        raise Usage(
            "Invalid batch size",
            f"{batch} is not divisible by the {replicas} replicas of {name}",
            hint=f"Use a multiple of {replicas}.",
            where="--batch",
        )
    notes = []
    if is_jax and nodes > slices:
        notes.append(f"compiled for one of {nodes} slices")
    if version is not None and version != LOWERED_WITH and not is_jax:
        notes.append(
            f"the runtime has TensorFlow {version}: its operations and compiler may differ"
        )
    if stack is not None and stack.file.job.setup:
        notes.append("job.setup was not run: it changes the machine")
    return CompileRequest(
        script=script.name,
        type=name,
        generation=generation,
        replicas=replicas,
        runtime=version,
        batch=batch,
        notes=tuple(notes),
        is_jax=is_jax,
        topology=topology,
        hosts=accelerator.workers,
        slices=slices if is_jax else 1,
    )


def _accelerator(name: str) -> AcceleratorType:
    """The type of this name, which the compiler knows. Raises Usage or Refused."""
    accelerator, announced = type_named(name), announced_tpu(name)
    if accelerator is None and announced is not None:
        raise Refused(
            "TPU is not sold yet",
            f"{announced.name} was announced on {announced.announced}, and no compiler on PyPI "
            "knows it",
            hint="Choose a type of another generation:\n    tpuctl types",
            where="--type",
        )
    if accelerator is None:
        like = nearest_types(name)
        hint = f"Did you mean {', '.join(like)}?" if like else "List all types:\n    tpuctl types"
        detail = f"there is no type {name}"
        raise Usage("Unknown TPU type", detail, hint=hint, where="--type")
    if accelerator.generation not in FIRST_LIBTPU:
        raise Refused(
            "TPU generation unknown to the compiler",
            f"{accelerator.name} is a {accelerator.generation}; libtpu knows "
            f"{', '.join(FIRST_LIBTPU)}",
            where="--type",
            hint="Choose a type of one of these generations:\n    tpuctl types",
        )
    return accelerator


def _is_jax(script: Path, stack: Stack | None, tensorflow: str | None) -> bool:
    """Whether a script uses JAX: its framework, or nothing tells and there is no TensorFlow.

    Raises Refused for PyTorch.
    """
    from tpuctl.preflight.analysis.program.source import load
    from tpuctl.preflight.script_framework import framework_of, imported_modules

    project = load(script)
    if stack is not None:
        project.environment = stack.file.job.env
    module, framework = project.script, framework_of(project)
    choice = FrameworkChoice(framework, script.name) if framework is not None else None
    if stack is not None:
        choice = stack.for_framework(choice).framework
    is_torch = (
        "torch" in imported_modules(module) if choice is None else choice.framework == "torch"
    )
    if is_torch:
        raise Refused(
            "PyTorch is not supported by --compile",
            f"{script.name} uses PyTorch; only steps of TensorFlow and JAX can be compiled here",
            hint="Rehearse a few steps on this machine instead:\n    tpuctl rehearse SCRIPT",
            where="--compile",
        )
    return tensorflow is None if choice is None else choice.framework == "jax"


async def _ensure_environment(environments: Environments, kind: Kind, emit: Emit) -> Path:
    if environments.is_installed(kind):
        return environments.python(kind)
    with step(emit, f"environment/{kind.name}", "create", f"{kind.title}, once") as progress:
        return await environments.ensure(kind, progress.report)


async def _bundle(
    script: Path, stack: Stack | None, installation: Installation, emit: Emit
) -> Bundle:
    """What a job with the script would upload."""
    from tpuctl.cloud.threads import in_thread
    from tpuctl.jobs.bundle import build_bundle
    from tpuctl.jobs.requirements.installation import named_files

    job = _job_of(stack)
    bundle = await in_thread(
        build_bundle,
        script,
        include=(*job.include, *named_files(job, installation)),
        exclude=job.exclude,
        hashes=cache_home() / "file_hashes.json",
    )
    for warning in bundle.warnings:
        emit(WarningIssued(warning))
    return bundle


@dataclass
class _JobPackages:
    """The job's packages, in an environment that lowers the step."""

    environments: Environments
    script: Path
    bundle: Bundle
    stack: Stack | None
    installation: Installation
    emit: Emit

    async def for_tensorflow(self) -> Packages:
        """The environment that lowers the step with TensorFlow, with the job's other packages."""
        from tpuctl.preflight.compile.environments import LOWERING
        from tpuctl.preflight.rehearsal.job_packages import Packages, without_tensorflow

        image = await _ensure_environment(self.environments, LOWERING, self.emit)
        installation = self.installation.model_copy(update={"python": None})
        if not installation.has_packages:
            return Packages(image)
        for name in ("dependencies", "packages"):
            others = tuple(filter(None, map(without_tensorflow, getattr(installation, name))))
            installation = installation.model_copy(update={name: others})
        return await self._install(image, installation, has_tensorflow=True)

    async def for_jax(self, generation: str, may_install: Callable[[str], bool]) -> Packages:
        """The job's packages for its Python, with the libtpu for its JAX if that is not among them.

        Raises Refused for a libtpu that does not know the generation.
        """
        python = await self._python(may_install)
        packages = await self._install(python, self.installation)
        versions = await _versions(packages.python, "jax", "libtpu")
        if versions["jax"] is not None and versions["libtpu"] is None:
            requirement = Installation(
                dependencies=(f"jax[tpu]=={versions['jax']}",), uv=self.installation.uv
            )
            compiler = await self._install(packages.python, requirement)
            packages = replace(compiler, modules=packages.modules)
            versions = await _versions(packages.python, "jax", "libtpu")
        _require_libtpu(versions, generation)
        return packages

    async def _python(self, may_install: Callable[[str], bool]) -> Path:
        from tpuctl.flows.local_cloud import prepare_image
        from tpuctl.flows.preflight.job_interpreter import job_interpreter, python_note
        from tpuctl.local_cloud.machine_images import ImageStore

        build = self.installation.python
        if build is None:
            await prepare_image(None, self.emit, may_install)
            return ImageStore().path_of(None) / "bin" / "python3"
        interpreter = await job_interpreter(build, self.emit, may_install)
        self.emit(Note(python_note(build, interpreter)))
        return Path(interpreter.path)

    async def _install(
        self,
        python: Path,
        installation: Installation,
        *,
        has_tensorflow: bool = False,
    ) -> Packages:
        """A Python with packages on top, without TensorFlow if the image has its own."""
        from tpuctl.cloud.threads import in_thread
        from tpuctl.flows.preflight.job_interpreter import (
            TENSORFLOW_PACKAGES,
            PackageFolders,
            install_packages,
        )
        from tpuctl.preflight.rehearsal.job_packages import Packages, without_tensorflow

        if not installation.has_packages and installation.python is None:
            return Packages(python)
        home = private_folder(self.environments.cache / "compile" / "jobs")
        job = _job_of(self.stack)
        with (
            tempfile.TemporaryDirectory(prefix="tpuctl-compile-") as scratch,
            step(self.emit, "environment/requirements", "create") as progress,
        ):
            code = await in_thread(JobFolder, self.bundle, Path(scratch, "project"))
            file = code.path / (installation.requirements or "")
            if has_tensorflow and file.is_file():
                text = file.read_text("utf-8", "replace")
                file.write_text(without_tensorflow(text), "utf-8")
            return await install_packages(
                python,
                installation,
                code.path,
                self.bundle.digest,
                PackageFolders(home, self.environments.cache / "pip", Path(scratch)),
                progress.report,
                replaced=TENSORFLOW_PACKAGES if has_tensorflow else {},
                job=job.env,
            )


def _require_libtpu(versions: Mapping[str, str | None], generation: str) -> None:
    libtpu, first = versions["libtpu"], FIRST_LIBTPU[generation]
    if libtpu is not None and not allows(f">={first}", libtpu):
        raise Refused(
            "libtpu does not know this TPU",
            f"the job's JAX {versions['jax']} has libtpu {libtpu}, and libtpu {first} is the first "
            f"that knows {generation}",
            where="job.requirements",
            hint=f"Require a release of jax[tpu] that has libtpu {first} or later.",
        )


async def _versions(python: Path, *names: str) -> dict[str, str | None]:
    """The versions of packages that a Python sees; None if it does not."""
    program = (
        "import importlib.metadata, json, sys\n"
        "versions = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: versions[name] = importlib.metadata.version(name)\n"
        "    except importlib.metadata.PackageNotFoundError: versions[name] = None\n"
        "print(json.dumps(versions))\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-I", "-c", program, *names), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return dict(json.loads(output))


async def _local_cloud(
    bundle: Bundle,
    arguments: Sequence[str],
    stack: Stack | None,
    job: Mapping[str, str],
    samples: Sequence[Sample],
    emit: Emit,
) -> Mapping[str, str | None]:
    """The variables that point the script at the local cloud, with the buckets it names created;
    empty if it names none."""
    from tpuctl.flows.preflight.local_buckets import bucket_names, prepare_local_cloud

    buckets = bucket_names([*arguments, *job.values()], bundle.sources_of_python)
    if not buckets and not samples:
        return {}
    return await prepare_local_cloud(buckets, samples, emit, stack)


def _job_variables(
    stack: Stack | None, request: CompileRequest, variables: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the first worker, as far as a stack defines them."""
    job = {
        **(_jax_variables(request.type) if request.is_jax else TENSORFLOW_VARIABLES),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TPU_NAME": "local",
        "TPUCTL_WORKER": "0",
        "TPUCTL_WORKERS": "1",
    }
    if request.slices > 1:
        job |= {
            "TPUCTL_SLICE": "0",
            "TPUCTL_SLICES": str(request.slices),
            "MEGASCALE_SLICE_ID": "0",
            "MEGASCALE_NUM_SLICES": str(request.slices),
        }
    if request.runtime is not None and _version_numbers(request.runtime) < KERAS_3:
        job["TF_USE_LEGACY_KERAS"] = "1"  # the runtime's tf.keras is Keras 2
    if stack is not None:
        job["TPUCTL_BUCKET"] = stack.bucket
        job["TPUCTL_OUTPUT"] = f"gs://{stack.bucket}/tpuctl/compile/output"
        job |= stack.file.job.env
    return job | dict(variables)


def _jax_variables(type_name: str) -> dict[str, str]:
    return {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # there is no TPU to lock
        # libtpu would ask the metadata server for these.
        "TPU_ACCELERATOR_TYPE": type_name,
        "TPU_WORKER_HOSTNAMES": "localhost",
    }


def _environment(
    job: Mapping[str, str],
    cloud: Mapping[str, str | None],
    packages: Packages,
    settings: Path,
    folder: Path,
) -> dict[str, str]:
    """The script's environment: that of a worker, with no variable that points to Google."""
    from tpuctl.preflight.rehearsal.script_environment import script_variables, shell_variables

    home = folder / "home"
    home.mkdir()
    return script_variables(
        shell_variables(os.environ),
        cloud,
        job,
        home=home,
        shim=_shim(),
        settings=settings,
        programs=packages.programs or (str(packages.python.parent),),
        modules=packages.modules,
    )


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _shim() -> Path:
    import tpuctl.simulated_tpu

    return Path(tpuctl.simulated_tpu.__file__).resolve().parent
