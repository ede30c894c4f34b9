"""Where a job's secrets come from, as people write it; never what they are.

env                                       the variable of the same name where `run` is typed
env:OTHER_NAME                            another variable
secret:NAME, secret:NAME@VERSION          Secret Manager, in the stack's project
projects/P/secrets/NAME[/versions/V]      Secret Manager, anywhere
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tpuctl.errors import NotFound, Usage

__all__ = [
    "FORMS",
    "SOURCE",
    "Secrets",
    "Source",
    "parse_option",
    "secret_not_found",
    "source_of",
]

_ID, _VERSION = r"[A-Za-z0-9_-]{1,255}", r"[A-Za-z0-9_-]{1,63}"
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z0-9][-a-z0-9]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
SOURCE = (
    rf"^(env(:{_VARIABLE})?|secret:{_ID}(@{_VERSION})?"
    rf"|projects/{_PROJECT}/secrets/{_ID}(/versions/{_VERSION})?)$"
)
FORMS = (
    "env: the variable of that name here. env:OTHER: another one. secret:NAME or "
    "secret:NAME@VERSION: from Secret Manager."
)


@dataclass(frozen=True)
class Source:
    """A variable of whoever submits, or else a version of a secret in Secret Manager."""

    variable: str = ""
    secret: str = ""  # projects/P/secrets/NAME
    version: str = "latest"

    @property
    def reference(self) -> str:
        """The version's name in full; empty for a variable."""
        return f"{self.secret}/versions/{self.version}" if self.secret else ""


@dataclass(frozen=True)
class Secrets:
    """All secrets of a job: where each comes from, and the values that are had already.

    Those of Secret Manager are fetched by the machines. `patience` is for how many seconds a
    machine's account may still be refused though it was let in.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry_seconds: float = 0.0

    @classmethod
    def of(
        cls, sources: Mapping[str, str], project: str, *, environment: Mapping[str, str]
    ) -> Secrets:
        """From what people wrote. Raises Usage for variables that are not set."""
        parsed = {name: source_of(name, text, project) for name, text in sources.items()}
        return cls(parsed, _values(parsed, environment))

    @property
    def references(self) -> dict[str, str]:
        return {name: source.reference for name, source in self.sources.items() if source.secret}

    @property
    def recorded(self) -> dict[str, str]:
        """What may be read by everybody who reads the job's record."""
        return {
            name: source.reference or f"env:{source.variable}"
            for name, source in self.sources.items()
        }


def source_of(name: str, text: str, project: str) -> Source:
    """The source of the secret that the script is to find as `name`. The text matches SOURCE."""
    if text.startswith("env"):
        return Source(variable=text.partition(":")[2] or name)
    if text.startswith("secret:"):
        secret, _, version = text.removeprefix("secret:").partition("@")
        return Source(secret=f"projects/{project}/secrets/{secret}", version=version or "latest")
    secret, _, version = text.partition("/versions/")
    return Source(secret=secret, version=version or "latest")


def parse_option(text: str, option: str = "--secret") -> tuple[str, str]:
    """`NAME=SOURCE`, or `NAME` for `NAME=env`. Raises Usage, without a word of what was given.

    A value has no place on a command line: other users of the machine can read it there.
    """
    name, equals, source = text.partition("=")
    source = source if equals else "env"
    if re.fullmatch(_VARIABLE, name) and re.fullmatch(SOURCE, source):
        return name, source
    prefix = f"{option} {name}=..." if re.fullmatch(_VARIABLE, name) else option
    raise Usage(
        "No source of a secret",
        f"{prefix} must say where the value is to be found, never the value itself",
        hint=f"{FORMS}\nFor example\n    tpuctl run --secret HF_TOKEN train.py",
        where=option,
    )


def secret_not_found(secret: str, version: str = "") -> NotFound:
    """The refusal of a secret, or of a version of it, that nobody has made."""
    project, name = secret.split("/")[1::2]
    is_numbered = version not in ("", "latest")
    subject = f"version {version} of {secret}" if is_numbered else secret
    subject += ", or no version of it," if version == "latest" else ""
    verb = "versions add" if is_numbered else "create"
    return NotFound(
        "No such secret",
        f"there is no {subject} in Secret Manager",
        hint="Make it, typing the value where nobody reads along:\n"
        f"    gcloud services enable secretmanager.googleapis.com --project={project}\n"
        f"    gcloud secrets {verb} {name} --project={project} --data-file=-",
    )


def _values(sources: Mapping[str, Source], environment: Mapping[str, str]) -> dict[str, str]:
    """Of those that are variables of whoever submits."""
    variables = {name: source.variable for name, source in sources.items() if source.variable}
    missing = sorted({variable for variable in variables.values() if not environment.get(variable)})
    if missing:
        raise Usage(
            "Secret is not set",
            f"{_join(missing)} {'is' if len(missing) == 1 else 'are'} not set here, and "
            "a secret of the job is to come from there",
            hint=f"Set it without a trace in your shell's history:\n    read -rs {missing[0]} && "
            f"export {missing[0]}\nOr keep it in Secret Manager, and name it\n"
            f"    secrets: {{{missing[0]}: secret:NAME}}",
        )
    return {name: environment[one] for name, one in variables.items()}


def _join(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
