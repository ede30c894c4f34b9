"""What decides which packages pip installs, apart from the image: for the keys of environments.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later.
"""

from __future__ import annotations

import codecs
import configparser
import hashlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables that pip, uv and build backends read.
TOOLS = re.compile(r"PIP_|UV_|SETUPTOOLS_|HATCH_|CMAKE_|(CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|CC|CXX)$")
# pip's settings, without `PIP_`, that do not decide what is installed.
IRRELEVANT = frozenset(
    {
        *("CACHE_DIR", "CERT", "CLIENT_CERT", "COMPILE", "DEBUG", "DEFAULT_TIMEOUT", "LOG"),
        *("DISABLE_PIP_VERSION_CHECK", "EXISTS_ACTION", "KEYRING_PROVIDER", "NO_CACHE_DIR"),
        *("NO_COLOR", "NO_INPUT", "PROGRESS_BAR", "PROXY", "QUIET", "RETRIES", "TIMEOUT"),
        *("NO_COMPILE", "ROOT_USER_ACTION", "TRUSTED_HOST", "VERBOSE", "CONFIG_FILE"),
    }
)
# uv's variables that do not either: passwords, and how it works.
UV_IRRELEVANT = re.compile(
    r"UV_(INDEX_\w+_(USERNAME|PASSWORD)|PUBLISH_\w+|CACHE_DIR|CONCURRENT_\w+|HTTP_\w+|INSECURE_HOST|"
    r"KEYRING_PROVIDER|LINK_MODE|LOG_\w+|NO_CACHE|NO_PROGRESS|NO_WRAP|PYTHON\w*|REQUEST_TIMEOUT|"
    r"SHOW_\w+|STACK_SIZE|SYSTEM_CERTS|NATIVE_TLS|TOOL_\w+)$"
)
CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*@")  # of a URL
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # as pip expands them in requirements
INCLUDE = re.compile(r"(?m)^\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*([^\s#]+)")
ENCODING = re.compile(rb"coding[:=]\s*([-\w.]+)")
MARKS = {  # the longer ones first
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# A requirement by name that applies everywhere: without a marker, a path, or an archive's name.
NAMED = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:$|[\[(=<>!~@]|--)[^;]*")
COMMENT = re.compile(r"(?:^|\s+)#.*")
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


def decode(data: bytes) -> str:
    """The text of a requirements file, in the encoding that pip reads it in."""
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    for line in data.split(b"\n", 2)[:2]:
        declared = ENCODING.search(line) if line.startswith(b"#") else None
        if declared:
            try:
                return data.decode(declared[1].decode(), "replace")
            except LookupError:
                break
    return data.decode("utf-8", "surrogateescape")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Requirements with the values of variables that are set, as pip reads them."""
    return VARIABLE.sub(lambda match: variables.get(match[1]) or match[0], text)


def without_credentials(text: str) -> str:
    """The text with the passwords of its URLs removed: they decide nothing."""
    return CREDENTIALS.sub("", text)


def required_names(text: str) -> list[str]:
    """The packages that requirements name, and that are therefore installed afterwards."""
    lines = text.replace("\\\n", " ").splitlines()
    matches = (NAMED.fullmatch(COMMENT.sub("", line).strip()) for line in lines)
    return [match[1] for match in matches if match and not match[1].lower().endswith(ARCHIVES)]


def pip_inputs(text: str, cwd: str, variables: Mapping[str, str]) -> list[str]:
    """Everything but the requirements `text`, which is expanded, that decides what pip installs.

    pip runs in `cwd`, which is also the folder of the file that has the text, if it is from one.
    """
    values: dict[str, str] = {}
    for name in sorted(variables):
        is_irrelevant = name[4:] in IRRELEVANT if name[:4] == "PIP_" else UV_IRRELEVANT.match(name)
        if TOOLS.match(name) and not is_irrelevant:
            values[name] = variables[name]
    settings = {
        name: value
        for name, value in _settings(cwd, variables)
        if _option(name.partition(".")[2]) not in IRRELEVANT
    }
    includes = list(_included(text, cwd, variables, set()))
    parts = []
    for name, value in {**settings, **values}.items():
        words: list[str] = []
        for word in value.split():
            file = os.path.join(cwd, os.path.expanduser(word))
            if os.path.isfile(file):
                content = _read(file, variables)
                includes += [content]
                includes += _included(content, os.path.dirname(file), variables, {file})
            elif os.path.isdir(file):
                words += _archives(file)
            else:
                words.append(word)
        parts.append(name + "=" + " ".join(words))
    return [*includes, *parts]


def included_files(text: str, cwd: str, variables: Mapping[str, str]) -> list[str]:
    """The contents of the files that requirements include."""
    return list(_included(text, cwd, variables, set()))


def pip_settings(
    cwd: str, variables: Mapping[str, str], *, is_complete: bool = False
) -> dict[str, str]:
    """pip's settings for `pip install`, as in {"INDEX_URL": ...}: of its files, and of variables,
    which take precedence. Unless `is_complete`, without those that decide nothing."""
    by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for name, value in _settings(cwd, variables):
        section, _, key = name.partition(".")
        if section in by_section:
            by_section[section][_option(key)] = value
    merged = {**by_section["global"], **by_section["install"]}
    merged.update({name[4:]: variables[name] for name in variables if name[:4] == "PIP_"})
    return {name: merged[name] for name in merged if is_complete or name not in IRRELEVANT}


def _option(key: str) -> str:
    return key.replace("-", "_").upper()


def _included(
    text: str, folder: str, variables: Mapping[str, str], visited: set[str]
) -> Iterator[str]:
    """The contents of the files that requirements include, and of those included there."""
    for match in INCLUDE.finditer(text):
        file = os.path.normpath(os.path.join(folder, match[1]))
        if file not in visited and os.path.isfile(file):
            visited.add(file)
            content = _read(file, variables)
            yield content
            yield from _included(content, os.path.dirname(file), variables, visited)


def _read(path: str, variables: Mapping[str, str]) -> str:
    with open(path, "rb") as source:
        return expand(decode(source.read()), variables)


def _archives(folder: str) -> Iterator[str]:
    """The packages in a folder that pip searches."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(ARCHIVES) and os.path.isfile(path):
            yield f"{name}:{digest(path)}"


def digest(path: str) -> str:
    checksum = hashlib.sha256()
    with open(path, "rb") as source:
        for piece in iter(lambda: source.read(1 << 20), b""):
            checksum.update(piece)
    return checksum.hexdigest()


def _settings(cwd: str, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings in pip's configuration files, the decisive ones last (pip.pypa.io,
    "Configuration")."""
    home = variables.get("HOME") or os.path.expanduser("~")
    shared = variables.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [os.path.join(folder, "pip/pip.conf") for folder in shared.split(os.pathsep)]
    settings_folder = variables.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files += ["/etc/pip.conf", home + "/.pip/pip.conf", settings_folder + "/pip/pip.conf"]
    config_file = variables.get("PIP_CONFIG_FILE", "")
    if config_file == os.devnull:  # then pip reads none
        return
    for file in [*files, *([os.path.join(cwd, config_file)] if config_file else [])]:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, "utf-8")
        except (configparser.Error, UnicodeDecodeError):  # pip rejects it, too
            continue
        for section in sorted(parser.sections()):
            for key, value in sorted(parser.items(section)):
                yield f"{section}.{key}", value
