"""Lets uv install from where pip would, by pip's variables and configuration files.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. uv's variables, if the job sets them, take precedence. What only pip can do is for pip.
"""

from __future__ import annotations

import os
import re
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.jobs.shipped.environment.pip_inputs import IRRELEVANT, VARIABLE, pip_settings
else:
    from pip_inputs import IRRELEVANT, VARIABLE, pip_settings

# pip's settings that have a variable of uv's, and what separates several values there.
VARIABLES = {
    "INDEX_URL": ("UV_DEFAULT_INDEX", " "),
    "EXTRA_INDEX_URL": ("UV_INDEX", " "),
    "FIND_LINKS": ("UV_FIND_LINKS", ","),
    "TRUSTED_HOST": ("UV_INSECURE_HOST", " "),
    "CERT": ("SSL_CERT_FILE", " "),
    "CLIENT_CERT": ("SSL_CLIENT_CERT", " "),
    "PROXY": ("ALL_PROXY", " "),
    "DEFAULT_TIMEOUT": ("UV_HTTP_TIMEOUT", " "),
    "TIMEOUT": ("UV_HTTP_TIMEOUT", " "),
    "RETRIES": ("UV_HTTP_RETRIES", " "),
}
# Older names of uv's variables, which a job may set instead.
ALIASES = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
FLAGS = {  # pip's settings that are on or off, and uv's options
    "NO_INDEX": ("--no-index",),
    "NO_DEPS": ("--no-deps",),
    "REQUIRE_HASHES": ("--require-hashes",),
    "PRE": ("--prerelease", "allow"),
}
LISTS = {"ONLY_BINARY": "--only-binary", "NO_BINARY": "--no-binary", "CONSTRAINT": "--constraint"}
# Decide nothing in a virtual environment of tpuctl's, which is empty before.
WITHOUT_EFFECT = frozenset(
    {
        *("BREAK_SYSTEM_PACKAGES", "NO_WARN_CONFLICTS", "NO_WARN_SCRIPT_LOCATION"),
        *("REQUIRE_VIRTUALENV", "USER", "UPGRADE", "NO_PYTHON_VERSION_WARNING"),
    }
)
# uv compiles all modules, in parallel; an import compiles only those that it needs, one by one.
MIN_PROCESSORS = 8
OFF = ("", "0", "false", "no", "off", "f", "n")
# Options in requirements that uv knows; pip's others, uv ignores or refuses.
KNOWN = re.compile(
    r"(-[rceif]($|[\s=]|(?<=-[rceif])[^-\s])|--(requirement|constraint|editable|index-url|"
    r"extra-index-url|find-links|no-index|no-binary|only-binary|require-hashes|hash|trusted-host)"
    r"($|[\s=]))"
)
OPTION = re.compile(r"(?:^|\s)(--?[A-Za-z][\w-]*)")
# Settings of the job for its own use of uv. They would lead uv away from the environment, or keep
# it from reading a lock as it is.
UNSET = frozenset(
    {
        *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES", "UV_PROJECT_ENVIRONMENT"),
        *("UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY", "UV_LOCKED", "UV_FROZEN"),
        *("UV_NO_SYNC", "UV_LINK_MODE", "UV_NO_MANAGED_PYTHON", "UV_MANAGED_PYTHON", "UV_TARGET"),
        *("VIRTUAL_ENV", "CONDA_PREFIX"),
    }
)


def uv_variables(variables: Mapping[str, str], cwd: str, *, has_own_python: bool) -> dict[str, str]:
    """The environment variables of uv: the job's, and those for pip's settings."""
    result = {name: variables[name] for name in variables if name not in UNSET}
    settings = pip_settings(cwd, variables, is_complete=True)
    is_uv_choice = any(name in result for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL"))
    for name, (variable, separator) in VARIABLES.items():
        value = settings.get(name, "").split()
        is_set = variable in result or ALIASES.get(variable, "") in result
        if value and not is_set and value != ["None"]:
            result[variable] = separator.join(value)
    bundle = result.get("REQUESTS_CA_BUNDLE") or result.get("CURL_CA_BUNDLE")
    if bundle:
        result.setdefault("SSL_CERT_FILE", bundle)
    if not is_uv_choice:  # the newest release of all indexes, as pip
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    result.setdefault("UV_CACHE_DIR", os.path.expanduser("~/.tpuctl/uv"))
    if (os.cpu_count() or 1) >= MIN_PROCESSORS:  # once, for all machines that copy it
        result.setdefault("UV_COMPILE_BYTECODE", "1")
    result["UV_PYTHON_DOWNLOADS"] = "never"
    result["UV_NO_PROGRESS"] = "1"
    if has_own_python:  # such builds name the compiler of those who made them
        result.setdefault("CC", "cc")
        result.setdefault("CXX", "c++")
    return result


def uv_options(variables: Mapping[str, str], cwd: str) -> list[str]:
    """The options of `uv pip install` for pip's settings."""
    settings = pip_settings(cwd, variables)
    options: list[str] = []
    for name, words in FLAGS.items():
        if is_on(settings.get(name, "")):
            options += words
    for name, option in LISTS.items():
        for value in re.split(r"[\s,]+", settings.get(name, "").strip()):
            if value:
                options += [option, value]
    return options


def insecure_hosts(texts: Sequence[str]) -> list[str]:
    """The hosts of `--trusted-host` in requirements, which uv reads from a variable alone."""
    return re.findall(r"(?m)^\s*--trusted-host[ =]\s*(\S+)", "\n".join(texts))


def for_pip(texts: Sequence[str], variables: Mapping[str, str], cwd: str) -> str:
    """What only pip can do, of requirements, also in files that they include, and pip's settings;
    "" if there is nothing."""
    for text in texts:
        for line in lines_of(text):
            for option in unknown_options(line):
                return option
            if any(is_beside_url(line, match.start()) for match in VARIABLE.finditer(line)):
                return "variables in requirements"
    for_uv = {*VARIABLES, *FLAGS, *LISTS, *WITHOUT_EFFECT, *IRRELEVANT}
    for name, value in pip_settings(cwd, variables).items():
        if name not in for_uv and is_on(value):
            return "pip's setting " + name.lower().replace("_", "-")
    return ""


def lines_of(text: str) -> Iterator[str]:
    """The lines of requirements, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        code = re.sub(r"(^|\s+)#.*", "", line).strip()
        if code:
            yield code


def unknown_options(line: str) -> Iterator[str]:
    for match in OPTION.finditer(line.partition(" ; ")[0]):
        if not KNOWN.match(line[match.start(1) :]):
            yield match[1]


def is_beside_url(line: str, position: int) -> bool:
    """Whether a part of a line is not of an address, where uv knows variables, too."""
    start = line.rfind(" ", 0, position) + 1
    return "://" not in line[start:position] and not line.startswith(("-", "."))


def is_on(value: str) -> bool:
    return value.strip().lower() not in OFF


def configuration(cwd: str, top: str) -> list[str]:
    """What decides what uv installs, of uv.toml and pyproject.toml in `cwd` and above, up to the
    folder `top`."""
    texts: list[str] = []
    folder = os.path.normpath(cwd)
    top = os.path.normpath(top)
    while True:
        for name in ("uv.toml", "pyproject.toml"):
            try:
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError:
                continue
            texts += [text] if name == "uv.toml" else tables(text)
        if folder == top or not folder.startswith(top + os.sep):
            return texts
        folder = os.path.dirname(folder)


def tables(text: str) -> Iterator[str]:
    """The tables of a pyproject.toml that configure uv."""
    for table in re.split(r"(?m)^(?=\s*\[)", text):
        if re.match(r"\s*\[+\s*tool\s*\.\s*uv\b", table):
            yield table.strip()
