"""`init`: create a stack file and a job from a template, or a stack file for scripts that exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl import assets
from tpuctl.catalog import (
    TENSORFLOW_GENERATIONS,
    AcceleratorType,
    Capacity,
    Price,
    accelerator_type,
    cheapest_to_train,
    cheapest_zones,
    node_price,
    zones_of,
)
from tpuctl.errors import Conflict, InvalidStack, TpuctlError, Usage
from tpuctl.flows.ci.pipeline_text import yaml_scalar
from tpuctl.model.scripts.entry_script import find_script, has_scripts
from tpuctl.model.scripts.framework import (
    TITLES,
    FrameworkChoice,
    framework_in,
    framework_of_script,
    modules_of_script,
)
from tpuctl.model.scripts.requirement_files import required
from tpuctl.model.stack.schema import StackFile
from tpuctl.model.stack.stack import minimal_stack, slug
from tpuctl.model.stack.stack_rules import find_problems
from tpuctl.model.stack.stack_text import parse_stack_text
from tpuctl.model.text.names import CONTROL_CHARACTERS
from tpuctl.spelling import nearest
from tpuctl.units import counted

STACK_FILE = "tpuctl.yaml"
SCRIPTS = ("pretrain.py", "train.py")  # the script to run in a template's job
LOCAL_PROJECT = "local-project"  # exists in a new local cloud
REQUIREMENTS = ("requirements.txt", "pyproject.toml")
SPOT = re.compile(r"(?m)^  capacity: spot\b")
COMMENT_COLUMN = 44
NEEDED = {"jax": "jax[tpu]", "torch": "torch_xla[tpu]"}  # the images have neither
BRINGS_LIBTPU = ("libtpu", "torch-tpu")


@dataclass(frozen=True)
class TpuOptions:
    """The TPU that the user asks for; what is missing is the template's, or the cheapest."""

    accelerator: AcceleratorType | None = None
    zones: tuple[str, ...] = ()
    is_spot: bool = False


@dataclass(frozen=True)
class DetectedJob:
    """What a folder's scripts tell about a job. Paths are relative to the folder."""

    script: Path | None  # None: several could be meant
    framework: FrameworkChoice | None
    requirements: str  # a file, or the script itself; empty: none
    notes: tuple[str, ...]  # what keeps the job from running


@dataclass(frozen=True)
class CreatedFiles:
    """The created files, the folder of the job, and the script to run.

    A job without a stack file has instead the command to start it with on this computer.
    """

    files: tuple[Path, ...]
    stack_file: Path | None
    folder: Path | None
    script: str
    command: str = ""


@dataclass(frozen=True)
class Draft:
    """What `init` will write, complete and valid."""

    template: str  # empty: only a stack file
    stack_text: str  # empty: only a job
    stack_file: Path
    target: Path  # folder of the job
    file: StackFile | None
    job: DetectedJob | None

    @property
    def price(self) -> Price | None:
        """Of the node, in its first zone."""
        assert self.file is not None
        tpu = self.file.tpu
        accelerator = accelerator_type(tpu.type)
        assert accelerator is not None
        return node_price(accelerator, tpu.zones[0], capacity=tpu.capacity)

    def write(self) -> CreatedFiles:
        """Write the files. Raises TpuctlError."""
        folder = self.stack_file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return self._write()
        except OSError as error:
            raise TpuctlError(
                "Cannot write files",
                f"{error.filename or folder}: {error.strerror}",
                hint="Choose another folder with --folder.",
            ) from error

    def _write(self) -> CreatedFiles:
        files: list[Path] = []
        if self.stack_text:
            self.stack_file.write_text(self.stack_text, "utf-8")
            files.append(self.stack_file)
        source = _job_template(self.template)
        has_job = bool(self.template) and source.is_dir()
        if has_job:  # links between templates become files
            shutil.copytree(source, self.target, ignore=shutil.ignore_patterns("__pycache__"))
            files += sorted(path for path in self.target.rglob("*") if path.is_file())
        scripts = [path for path in files if path.name in SCRIPTS and path.parent == self.target]
        if self.job is not None and self.job.script is not None:
            scripts = [self.stack_file.parent / self.job.script]
        return CreatedFiles(
            tuple(files),
            self.stack_file if self.stack_text else None,
            self.target if has_job else None,
            shlex.quote(str(scripts[0])) if scripts else "SCRIPT",
            "" if self.stack_text else job_command(self.target),
        )


def describe_templates() -> dict[str, str]:
    """A sentence about each template: for whom it is."""
    return {name: _description(name) for name in assets.template_names()}


def _description(template: str) -> str:
    """The first line of a stack file; of a job alone, the first sentence of its documentation."""
    stack_file = _stack_template(template)
    if stack_file.is_file():
        return stack_file.read_text("utf-8").partition("\n")[0].lstrip("# ")
    text = re.sub(r"\A# .*\n", "", _documentation(_job_template(template))).strip()
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def _documentation(folder: Path) -> str:
    """The README of a job's folder, or the docstring of its only script."""
    readme = folder / "README.md"
    if readme.is_file():
        return readme.read_text("utf-8")
    script, *others = folder.glob("*.py")
    return "" if others else ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""


def job_command(folder: Path) -> str:
    """The first `python SCRIPT …` in the documentation of a job's folder, as typed outside it."""
    command = re.search(r"^\s*python (\S+\.py)(.*?)(?: +#.*)?$", _documentation(folder), re.M)
    if command is None:
        return ""
    script = shlex.quote(str(folder / Path(command[1]).name))
    return f"python {script}{command[2]}"


def guess_script(stack_file: Path) -> str:
    """The script next to a stack file, quoted for a shell; `SCRIPT` if it is not clear which."""
    script = find_script(stack_file.parent)
    return shlex.quote(str(script)) if script is not None else "SCRIPT"


def detect_job(folder: Path) -> DetectedJob | None:
    """What the scripts in a folder tell about a job; None if there are none."""
    if not has_scripts(folder):
        return None
    script = find_script(folder)
    if script is None:
        return DetectedJob(None, framework_in(folder), _requirements(folder, None), ())
    name = script.relative_to(folder)
    choice = framework_in(script.parent)
    if choice is None and (imported := framework_of_script(script)) is not None:
        choice = FrameworkChoice(imported, script.name)
    requirements = _requirements(script.parent, script)
    notes = []
    if not requirements and (elsewhere := _requirements(folder, None)):
        notes.append(f"{elsewhere} is not next to {name}: it will not be installed.")
    if choice is None and "torch" in modules_of_script(script):
        notes.append(f"{name} imports torch without torch_tpu or torch_xla: a TPU needs one.")
    framework = None if choice is None else choice.framework
    if framework is not None and framework in NEEDED:
        listed = required(script.parent, None, script)
        if not any("tpu" in package.extras or package.name in BRINGS_LIBTPU for package in listed):
            file = name.with_name(requirements or REQUIREMENTS[0])
            is_torch_tpu = "torch_tpu" in modules_of_script(script)
            needed = "torch_tpu" if is_torch_tpu else NEEDED[framework]
            notes.append(f"{TITLES[framework]} needs {needed} on a TPU: add it to {file}.")
    return DetectedJob(name, choice, requirements, tuple(notes))


def _requirements(folder: Path, script: Path | None) -> str:
    """The file with a job's requirements; empty if there is none."""
    files = [name for name in REQUIREMENTS if (folder / name).is_file()]
    if not files and script is not None and required(folder, None, script):
        return script.name
    return files[0] if files else ""


def prepare(
    template: str,
    folder: Path,
    *,
    name: str = "",
    project: str = "",
    local: bool = False,
    tpu: TpuOptions | None = None,
    job: DetectedJob | None = None,
) -> Draft:
    """A template's files, or for a detected job the stack file alone.

    Raises Conflict rather than overwrite a file; Usage and InvalidStack for what does not fit.
    """
    templates = assets.template_names()
    if job is None and template not in templates:
        like = nearest(template, templates) or templates
        raise Usage(
            "Unknown template",
            f"template {template} not found",
            hint=f"Did you mean {', '.join(like)}? List all templates:\n    tpuctl init --list",
        )
    stack_file, target = folder / STACK_FILE, folder / template
    has_stack = job is not None or _stack_template(template).is_file()
    if not has_stack and tpu is not None:
        raise Usage(
            "Template without a TPU",
            f"{template} is only a job, for a stack that exists or for this computer",
            hint="Remove --type, --zone and --spot.",
        )
    _require_absent(stack_file if has_stack else None, target if job is None else None, template)
    text, file = "", None
    if has_stack:
        text = _stack_text("empty" if job is not None else template, folder, name, project, local)
        text = _with_tpu(text, tpu or TpuOptions())
        text = text if job is None else _with_job(text, job)
        parsed = parse_stack_text(text, STACK_FILE, folder)
        file = parsed.validate()
        if problems := list(find_problems(file, parsed)):
            raise InvalidStack([replace(problem, where="") for problem in problems])
        choice = job.framework if job is not None else framework_in(_job_template(template))
        _require_framework(file.tpu.type, choice)
    return Draft("" if job is not None else template, text, stack_file, target, file, job)


def _require_absent(stack_file: Path | None, target: Path | None, template: str) -> None:
    other = f"another folder:\n    tpuctl init {template} --folder {template}-2"
    if stack_file is not None and stack_file.exists():
        otherwise = (
            f"choose {other}" if target is not None else "rename it, and repeat the command."
        )
        hint = f"Use the existing stack file:\n    tpuctl up\nor {otherwise}"
        raise _exists(stack_file, hint)
    if target is not None and target.exists():
        raise _exists(target, f"Choose {other}")


def _exists(path: Path, hint: str) -> Conflict:
    return Conflict("File already exists", f"{path} exists and is not overwritten", hint=hint)


def _stack_text(template: str, folder: Path, name: str, project: str, local: bool) -> str:
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    if local:
        project = project or LOCAL_PROJECT
    if not project:
        raise Usage(
            "No project specified",
            "the stack file needs a Google Cloud project id",
            hint="Pass it:\n    tpuctl init --project my-project\n"
            "or try tpuctl without an account:\n    tpuctl --cloud local init",
            where="--project",
        )
    name = name or slug(folder.resolve().name)
    minimal_stack(name, project, option="--name")  # rejects invalid names
    text = _stack_template(template).read_text("utf-8")
    return text.replace("{stack}", yaml_scalar(name)).replace("{project}", yaml_scalar(project))


def _with_tpu(text: str, options: TpuOptions) -> str:
    """A stack file with the TPU that was asked for; where the template leaves it open, with the
    cheapest that trains."""
    capacity: Capacity = "spot" if options.is_spot or SPOT.search(text) else "on-demand"
    default = accelerator_type(re.findall(r"(?m)^  type: (\S+)", text)[0])
    accelerator = options.accelerator or default or _cheapest(options.zones, capacity)
    for zone in options.zones:
        if zone not in zones_of(accelerator):
            raise Usage(
                "TPU type not offered in zone",
                f"{accelerator.name} is not offered in {zone}",
                hint=f"To list its zones:\n    tpuctl zones {accelerator.name}",
                where="--zone",
            )
    is_chosen = options.accelerator is not None or default is None
    if is_chosen:
        chips = counted(accelerator.chips, "chip")
        on_hosts = f" on {accelerator.workers} hosts" if accelerator.workers > 1 else ""
        comment = f"{chips}{on_hosts}; `tpuctl types` lists others"
        text = _set(text, "type", accelerator.name, comment)
    if is_chosen or options.zones:
        zones = options.zones or cheapest_zones(accelerator, capacity)
        comment = f"`tpuctl prices {accelerator.name}` lists others"
        if len(zones) > 1:
            comment = "tried in this order if one has no capacity"
        text = _set(text, "zones", f"[{', '.join(zones)}]", comment)
    if options.is_spot and not SPOT.search(text):
        text = _set(text, "spot", "true", "much cheaper; may be preempted at any time")
    return text


def _cheapest(zones: tuple[str, ...], capacity: Capacity) -> AcceleratorType:
    offer = cheapest_to_train(zones or None, capacity)
    if offer is None:
        raise Usage(
            "No TPU type for every framework in zone",
            f"{', '.join(zones)}: none of the Cloud TPU API that TensorFlow supports too",
            hint="Choose a type with --type:\n"
            + "\n".join(f"    tpuctl types --zone {zone}" for zone in zones),
            where="--zone",
        )
    return offer.accelerator


def _require_framework(type_name: str, choice: FrameworkChoice | None) -> None:
    accelerator = accelerator_type(type_name)
    assert accelerator is not None
    is_tensorflow = choice is not None and choice.framework == "tensorflow"
    if is_tensorflow and accelerator.generation not in TENSORFLOW_GENERATIONS:
        raise Usage(
            "TensorFlow does not support this TPU",
            f"the job uses {choice}, which does not run on {accelerator.generation}",
            hint="Use JAX, or choose a type of another generation:\n    tpuctl types",
            where="--type",
        )


def _with_job(text: str, job: DetectedJob) -> str:
    """A stack file that says for which job it is."""
    script = "the scripts in this folder" if job.script is None else str(job.script)
    uses = "" if job.framework is None else f", with {TITLES[job.framework.framework]}"
    text = f"# For {CONTROL_CHARACTERS.sub('?', script)}{uses}.\n{text.partition(chr(10))[2]}"
    settings = ""
    if job.framework is not None:
        because = CONTROL_CHARACTERS.sub("?", job.framework.because)
        settings += _line("framework", job.framework.framework, f"according to {because}")
    if job.requirements in REQUIREMENTS:
        settings += _line("requirements", job.requirements, "installed on each worker")
    return f"{text}\njob:\n{settings}" if settings else text


def _set(text: str, key: str, value: str, comment: str) -> str:
    """The text with a key of `tpu`, which is after the zones if it is new."""
    line = _line(key, value, comment)
    before, count = re.subn(rf"(?m)^  {key}: .*\n", lambda _: line, text)
    if count:
        return before
    return re.sub(r"(?m)^  zones: .*\n", lambda match: match[0] + line, text)


def _line(key: str, value: str, comment: str) -> str:
    setting = f"  {key}: {value}"
    return f"{setting:{COMMENT_COLUMN - 1}} # {comment}\n"


def _stack_template(template: str) -> Path:
    return assets.templates() / "stacks" / f"{template}.yaml"


def _job_template(template: str) -> Path:
    return assets.templates() / "jobs" / template
