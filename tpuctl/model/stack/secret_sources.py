"""Sources of a job's secrets; never their values.

env                                       the variable of the same name, where `run` is called
env:OTHER_NAME                            another variable
secret:NAME, secret:NAME@VERSION          Secret Manager, in the stack's project
projects/P/secrets/NAME[/versions/V]      Secret Manager, anywhere
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tpuctl.errors import NotFound, Usage

_ID, _VERSION = r"[A-Za-z0-9_-]{1,255}", r"[A-Za-z0-9_-]{1,63}"
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z0-9][-a-z0-9]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SECRET = rf"secret:{_ID}(@{_VERSION})?|projects/{_PROJECT}/secrets/{_ID}(/versions/{_VERSION})?"
SECRET = rf"^({_SECRET})$"  # in Secret Manager
SOURCE = rf"^(env(:{_VARIABLE})?|{_SECRET})$"
FORMS = (
    "env: your environment variable of that name. env:OTHER: another variable. secret:NAME or "
    "secret:NAME@VERSION: Secret Manager."
)


@dataclass(frozen=True)
class Source:
    """A variable of the submitter's environment, or a secret version in Secret Manager."""

    variable: str = ""
    secret: str = ""  # projects/P/secrets/NAME
    version: str = "latest"

    @property
    def reference(self) -> str:
        """The full name of the secret version; empty for a variable."""
        return f"{self.secret}/versions/{self.version}" if self.secret else ""


@dataclass(frozen=True)
class Secrets:
    """A job's secrets: their sources, and the values of environment variables."""

    sources: Mapping[str, Source] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, sources: Mapping[str, str], project: str, *, environment: Mapping[str, str]
    ) -> Secrets:
        """Parse sources. Raises Usage for variables that are not set."""
        parsed = {name: source_of(name, text, project) for name, text in sources.items()}
        return cls(parsed, _values(parsed, environment))

    @property
    def references(self) -> dict[str, str]:
        return {name: source.reference for name, source in self.sources.items() if source.secret}

    @property
    def recorded(self) -> dict[str, str]:
        """The sources as stored in the job's record, which others may read."""
        return {
            name: source.reference or f"env:{source.variable}"
            for name, source in self.sources.items()
        }


def source_of(name: str, text: str, project: str) -> Source:
    """Parse the source of the variable `name`. The text must match SOURCE."""
    if text.startswith("env"):
        return Source(variable=text.partition(":")[2] or name)
    if text.startswith("secret:"):
        secret, _, version = text.removeprefix("secret:").partition("@")
        return Source(secret=f"projects/{project}/secrets/{secret}", version=version or "latest")
    secret, _, version = text.partition("/versions/")
    return Source(secret=secret, version=version or "latest")


def parse_option(text: str, option: str = "--secret") -> tuple[str, str]:
    """`NAME=SOURCE`, or `NAME` for `NAME=env`. Raises Usage without repeating the text.

    Values are not accepted: other users of the machine can read command lines.
    """
    name, equals, source = text.partition("=")
    source = source if equals else "env"
    if re.fullmatch(_VARIABLE, name) and re.fullmatch(SOURCE, source):
        return name, source
    prefix = f"{option} {name}=..." if re.fullmatch(_VARIABLE, name) else option
    raise Usage(
        "Invalid secret source",
        f"{prefix} must be a source, not the secret value",
        hint=f"{FORMS}\nFor example\n    tpuctl run --secret HF_TOKEN train.py",
        where=option,
    )


def secret_not_found(secret: str, version: str = "") -> NotFound:
    """The error for a missing secret or version."""
    project, name = secret.split("/")[1::2]
    is_numbered = version not in ("", "latest")
    subject = f"version {version} of {secret}" if is_numbered else secret
    subject += ", or no version of it," if version == "latest" else ""
    verb = "versions add" if is_numbered else "create"
    return NotFound(
        "Secret not found",
        f"Secret Manager has no {subject}",
        hint="Create it; the value is read from standard input:\n"
        f"    gcloud services enable secretmanager.googleapis.com --project={project}\n"
        f"    gcloud secrets {verb} {name} --project={project} --data-file=-",
    )


def _values(sources: Mapping[str, Source], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of secrets that come from environment variables."""
    variables = {name: source.variable for name, source in sources.items() if source.variable}
    missing = sorted({variable for variable in variables.values() if not environment.get(variable)})
    if missing:
        raise Usage(
            "Secret variable not set",
            f"{_join(missing)} {'is' if len(missing) == 1 else 'are'} not set, but "
            "needed for a secret of the job",
            hint=f"Set it without leaving it in your shell's history:\n    read -rs {missing[0]} "
            "&& "
            f"export {missing[0]}\nOr store it in Secret Manager and refer to it:\n"
            f"    secrets: {{{missing[0]}: secret:NAME}}",
        )
    return {name: environment[variable] for name, variable in variables.items()}


def _join(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
