"""Parses a stack file and reports its problems with line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tpuctl.errors import Diagnostic, InvalidStack
from tpuctl.files import read_file
from tpuctl.model.stack.schema import NotifyEvent, StackFile
from tpuctl.model.stack.secret_sources import FORMS
from tpuctl.model.text.names import CONTROL_CHARACTERS
from tpuctl.spelling import nearest

EXAMPLES = {
    "project": "Add\n    project: my-project",
    "project.id": "Add the ID of your Google Cloud project.",
    "tpu": "Add\n    tpu: v5litepod-1",
    "tpu.type": "Add a type, for example v5litepod-1. To list all types:\n    tpuctl types",
}
NAME_FORMAT = "Name only: up to 63 lowercase letters, digits and hyphens, starting with a letter."
FORMATS = {
    "job.limits.hang": "Use a factor such as 10x, a duration such as 30m, or null.",
    "access.user": "Up to 32 letters, digits, dots, _ and -, starting with a letter or _; or auto.",
    "bucket.location": "A region, such as us-central1, or US, EU, ASIA.",
    "bucket.name": "Name without gs://: 3 to 63 lowercase letters, digits, - and _, not containing "
    "google; or auto.",
    "controller.image": "A family, PROJECT/FAMILY or PROJECT/images/IMAGE.",
    "controller.machine_type": "For example n1-standard-1; or auto.",
    "encryption.kms_key": "The key's name, as listed by `gcloud kms keys list`: "
    "projects/P/locations/L/keyRings/R/cryptoKeys/K.",
    "labels.*": "Up to 63 lowercase letters, digits, _ and -.",
    "network.name": NAME_FORMAT.replace("only", "or projects/HOST/global/networks/NAME"),
    "network.subnetwork": NAME_FORMAT.replace(
        "only", "or projects/HOST/regions/REGION/subnetworks/NAME"
    ),
    "names.prefix": "Up to 25 lowercase letters, digits and hyphens, starting with a letter.",
    "stack": "Up to 26 lowercase letters, digits and hyphens, starting with a letter.",
    "project.billing_account": "As listed by `gcloud billing accounts list`: 01AB23-45CD67-89EF01.",
    "project.parent": "organizations/NUMBER or folders/NUMBER.",
    "project": "The ID of your Google Cloud project, or settings such as {id: my-project}.",
    "tpu": "A type, or settings such as {type: v5litepod-1}. To list all types:\n    tpuctl types",
    "limits.idle": "A number with s, m, h or d, such as 30m; or null to never delete idle nodes.",
    "tpu.service_account": "Its email: NAME@PROJECT.iam.gserviceaccount.com.",
    "tpu.queue": "true, or settings such as {valid_until: 6h}.",
    "tpu.queue.provisioning_timeout": "A number with s, m, h or d, such as 1h; or null for never.",
    "tpu.queue.reservation": "Name only: letters, digits and hyphens.",
    "tpu.queue.run_for": "A number with s, m, h or d, such as 4h.",
    "tpu.queue.valid_until": "For example 6h, or a time with a time zone: 2026-01-31T18:00:00Z.",
    "project.id": "6 to 30 lowercase letters, digits and hyphens, as shown in the Cloud console.",
}
UNIONS = {  # keys with union types
    "job.workers": "Use auto, all, or a list of workers such as [0, 1].",
    "controller.scopes": "Use auto, or a list such as "
    "[https://www.googleapis.com/auth/cloud-platform].",
}
ALTERNATIVE = re.compile(r"^tpu\.any_of\.\d+")  # has keys of `tpu`
UNION_MEMBERS = (  # union members in pydantic's locations
    "literal['auto','all']",
    "literal['auto']",
    "tuple[int, ...]",
    "tuple[str, ...]",
    "function-before[_queue(), nullable[QueueSection]]",
)
EXPECTED = {  # by the first word of pydantic's error type
    "bool": "true or false",
    "dict": "a mapping, such as {key: value}",
    "finite": "a number",
    "float": "a number",
    "greater": "greater than 0",
    "model": "a mapping, such as {key: value}",
    "string": "text",
    "tuple": "a list, such as [a, b]",
}
# Values that are texts: they may have several lines. All others become names, paths or patterns.
TEXTS = ("job.setup", "job.env.", "tpu.metadata.")
# What not even an environment variable, or a request, can contain.
NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")
MAX_DEPTH = 32
MAX_BYTES = 1 << 20  # bytes of a stack file


@dataclass(frozen=True)
class StackText:
    """A stack file as written."""

    display_path: str  # relative to the current folder if possible
    content: dict[str, Any]
    lines: dict[str, int]  # by dotted key: "tpu.zones.0"
    folder: Path = Path()  # of the file

    def where(self, dotted: str) -> str:
        """file:line of a key, or of its closest parent in the file."""
        while dotted:
            if dotted in self.lines:
                return f"{self.display_path}:{self.lines[dotted]}"
            dotted = dotted.rpartition(".")[0]
        return self.display_path

    def validate(self) -> StackFile:
        """Validate against the schema. Raises InvalidStack with all problems."""
        problems = [*self._control_characters("", self.content)]
        try:
            file = StackFile.model_validate(self.content)
            if not problems:
                return file
        except ValidationError as error:
            explained = [self._explain(dict(item)) for item in error.errors()]
            lines = {problem.where for problem in explained}
            problems = [problem for problem in problems if problem.where not in lines] + explained
        unique = {(problem.where, problem.summary, problem.detail): problem for problem in problems}
        raise InvalidStack(list(unique.values())) from None

    def _control_characters(self, dotted: str, value: Any) -> Iterator[Diagnostic]:
        """Strings that could write lines of their own into what they become a part of: paths, the
        configuration of other programs, messages. The value may be a secret and is not shown."""
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield from self._control_characters(f"{dotted}.{key}".lstrip("."), item)
        elif isinstance(value, str):
            is_text = dotted.startswith(TEXTS) or (dotted == "network.ca" and "-----BEGIN" in value)
            unusable = NO_TEXT if is_text else CONTROL_CHARACTERS
            if (match := unusable.search(value)) is not None:
                name = "a line break" if match[0] in "\r\n" else f"U+{ord(match[0]):04X}"
                yield Diagnostic(
                    "Invalid value",
                    f"{CONTROL_CHARACTERS.sub('?', dotted)} contains {name}",
                    "Write the value on one line, without control characters.",
                    self.where(dotted),
                )

    def _explain(self, item: dict[str, Any]) -> Diagnostic:
        steps = [part for part in item["loc"] if part not in UNION_MEMBERS]
        dotted = ".".join(str(part) for part in steps)
        where = self.where(dotted)
        kind = item["type"]
        if kind == "extra_forbidden":
            known_keys = _keys_at(steps[:-1])
            like = nearest(str(steps[-1]), known_keys, 1)
            hint = f"Did you mean {like[0]}?" if like else f"Valid keys: {', '.join(known_keys)}."
            sections = [key for key in known_keys if dotted in _keys_at([key])]
            if len(steps) == 1 and sections:
                hint = f"It is a key of {sections[0]}: write\n    {sections[0]}: {{{dotted}: ...}}"
            return Diagnostic("Unknown key", f"{dotted} is not a valid key", hint, where)
        if kind == "missing":
            return Diagnostic(
                "Missing key", f"{dotted} is required", EXAMPLES.get(dotted, ""), where
            )
        if steps[-1:] == ["[key]"]:
            return self._explain_name(steps, item["input"])
        return self._explain_value(dotted, kind, item)

    def _explain_name(self, steps: list[Any], name: Any) -> Diagnostic:
        """Explain an invalid user-defined key: a variable, label or metadata key."""
        noun, hint = "a variable name", "Use letters, digits and _, not starting with a digit."
        if steps[0] == "tpu":
            noun, hint = "a metadata key", "Use up to 127 letters, digits, _ and -."
        if steps[0] == "labels":
            noun = "a label key"
            hint = "Use up to 63 lowercase letters, digits, _ and -, starting with a letter."
        detail = f"{_brief(name)} cannot be {noun}"
        return Diagnostic("Invalid value", detail, hint, self.where(".".join(steps[:-1])))

    def _explain_value(self, dotted: str, kind: str, item: dict[str, Any]) -> Diagnostic:
        where = self.where(dotted)
        if dotted.startswith("job.secrets") or dotted in ("notify", "notify.url"):
            return _explain_secret(dotted, where)
        if dotted == "access.ssh_key" and kind == "value_error":  # the value is a key
            hint = "Write it to a file that only you can read, and name the file; or use auto."
            detail = f"{dotted} holds a key, not the path of its file"
            return Diagnostic("Invalid value", detail, hint, where)
        for union, hint in UNIONS.items():
            if dotted.startswith(union):
                detail = f"{union} cannot be {_brief(item['input'])}"
                return Diagnostic("Invalid value", detail, hint, where)
        if kind == "literal_error":
            hint = _literal_hint(dotted, item)
            detail = f"{dotted} cannot be {_brief(item['input'])}"
            return Diagnostic("Invalid value", detail, hint, where)
        if kind == "greater_than_equal":
            least = item["ctx"]["ge"]
            detail = f"{dotted} must be at least {least}, not {item['input']}"
            return Diagnostic("Invalid value", detail, f"Set {least} or more.", where)
        expected = EXPECTED.get(kind.partition("_")[0])
        key = ALTERNATIVE.sub("tpu", dotted)
        hint = FORMATS.get(key, FORMATS.get(dotted.partition(".")[0] + ".*", ""))
        if hint or kind == "string_pattern_mismatch":
            detail = f"{dotted} cannot be {_brief(item['input'])}"
        elif expected is None:
            detail = f"{dotted}: {item['msg'].lower()} (found {_brief(item['input'])})"
        else:
            detail = f"{dotted} must be {expected}, not {_brief(item['input'])}"
            if expected == "text" and isinstance(item["input"], bool | int | float):
                hint = "Quote the value."
            elif item["input"] is None:
                hint = EXAMPLES.get(dotted, "Set a value, or remove the key.")
        return Diagnostic("Invalid value", detail, hint, where)


def _explain_secret(dotted: str, where: str) -> Diagnostic:
    """Explain an invalid source, which may be the secret itself: it is never shown."""
    if dotted.startswith("notify"):
        return Diagnostic(
            "Invalid webhook",
            "notify.url must name a secret in Secret Manager, not be the URL itself: anyone who "
            "has the URL can post to it",
            "Store the URL; it is read from standard input:\n"
            "    gcloud secrets create webhook --data-file=-\n"
            "Then refer to it:\n    notify: {url: secret:webhook}",
            where,
        )
    detail = f"{dotted} must be a source, not the secret value"
    hint = f"For example\n    secrets: {{HF_TOKEN: env}}\n{FORMS}"
    return Diagnostic("Invalid secret source", detail, hint, where)


def _literal_hint(dotted: str, item: dict[str, Any]) -> str:
    is_event = dotted.startswith("notify.on.")
    like = nearest(str(item["input"]), get_args(NotifyEvent), 1) if is_event else []
    return f"Did you mean {like[0]}?" if like else f"Use {item['ctx']['expected']}."


def read_stack_text(path: Path) -> StackText:
    """Read and parse a stack file. Raises InvalidStack."""
    display_path = _display_path(path)
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        hint = "Create one:\n    tpuctl init\nor pass another with --stack-file."
        raise _invalid("Stack file not found", f"{display_path} does not exist", hint) from None
    except (OSError, ValueError) as error:
        detail = f"{display_path}: {getattr(error, 'strerror', None) or error}"
        hint = "Pass a readable file with --stack-file."
        raise _invalid("Cannot read stack file", detail, hint) from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        detail = f"byte 0x{data[error.start]:02x} is not UTF-8"
        hint = "Save the file as UTF-8."
        where = f"{display_path}:{line}"
        raise _invalid("Cannot read stack file", detail, hint, where) from None
    return parse_stack_text(text, display_path, path.parent)


def parse_stack_text(text: str, display_path: str, folder: Path = Path()) -> StackText:
    """Parse the text of a stack file. Raises InvalidStack."""
    try:
        _reject_aliases(text, display_path)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _reject_repeated_keys(root, display_path)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise _invalid(
            "Invalid YAML in stack file",
            getattr(error, "problem", None) or str(error),
            "Check indentation, colons and brackets near this line.",
            f"{display_path}:{mark.line + 1}" if mark else display_path,
        ) from None
    except ValueError as error:  # an invalid number or date
        raise _invalid("Invalid YAML in stack file", str(error), where=display_path) from None
    if not isinstance(content, dict):
        raise _invalid(
            "Stack file is not a mapping",
            f"{display_path} must contain key-value pairs",
            "It needs at least\n    project: my-project\n    tpu: v5litepod-1",
            display_path,
        )
    return StackText(display_path, content, dict(_lines(root)), folder)


def _invalid(summary: str, detail: str, hint: str = "", where: str = "") -> InvalidStack:
    return InvalidStack([Diagnostic(summary, detail, hint, where)])


def _reject_aliases(text: str, display_path: str) -> None:
    """Reject aliases, by which a short file can expand without bound, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"{display_path}:{event.start_mark.line + 1}" if event.start_mark else display_path
        if isinstance(event, yaml.AliasEvent):
            detail = f"aliases such as *{event.anchor} are not supported"
            raise _invalid("YAML alias in stack file", detail, "Repeat the value.", where)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            detail = f"nested more than {MAX_DEPTH} levels deep"
            raise _invalid("Invalid YAML in stack file", detail, where=where)


def _reject_repeated_keys(root: yaml.Node | None, display_path: str) -> None:
    """Reject duplicate keys, of which YAML would silently use the last."""
    seen: dict[str, int] = {}
    repeated: set[str] = set()
    problems = []
    for dotted, line in _lines(root):
        if dotted in seen and repeated.isdisjoint(_parents(dotted)):
            repeated.add(dotted)
            detail = f"{dotted} is already set in line {seen[dotted]}"
            hint = "Keep one of them."
            problems.append(Diagnostic("Duplicate key", detail, hint, f"{display_path}:{line}"))
        seen.setdefault(dotted, line)
    if problems:
        raise InvalidStack(problems)


def _parents(dotted: str) -> Iterator[str]:
    """The parents of a key."""
    while dotted := dotted.rpartition(".")[0]:
        yield dotted


def _brief(value: Any) -> str:
    """Format a value for a message, shortened to one line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _display_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, RuntimeError, ValueError):  # RuntimeError: symlink loop
        return str(path)


def _lines(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, key.start_mark.line + 1
            yield from _lines(value, f"{dotted}.")
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1
            yield from _lines(value, f"{prefix}{index}.")


def _keys_at(steps: list[Any]) -> list[str]:
    """The valid keys in a section."""
    model: type[BaseModel] = StackFile
    for step in steps:
        if isinstance(step, int):  # list index
            continue
        if step not in model.model_fields:
            return []
        annotation = model.model_fields[step].annotation
        arguments = (getattr(each, "__origin__", each) for each in get_args(annotation))
        sections = [
            argument
            for argument in (annotation, *arguments)
            if isinstance(argument, type) and issubclass(argument, BaseModel)
        ]
        if not sections:
            return []
        model = sections[0]
    return sorted(model.model_fields)
