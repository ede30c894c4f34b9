"""This computer's configuration of pip and uv, for the machines and for scripts in a rehearsal."""

from __future__ import annotations

import ast
import configparser
import contextlib
import functools
import io
import os
import subprocess

from tpuctl.interpreters import current

HOST_PIP_VARIABLES = {  # settings of the host's pip that do not apply to machines
    *("PIP_CONFIG_FILE", "PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_LOG"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_SRC"),
}
# Where uv finds packages and Pythons.
UV_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_INDEX_STRATEGY"),
    *("UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS_JSON_URL"),
)


def uv_variables() -> dict[str, str]:
    """The host's settings of uv that also apply to machines."""
    return {name: os.environ[name] for name in UV_VARIABLES if name in os.environ}


def pip_configuration() -> tuple[str, dict[str, str]]:
    """The host's pip configuration (indexes, mirrors): as one file's text, and its variables."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") and name not in HOST_PIP_VARIABLES
    }
    merged = configparser.RawConfigParser()
    for line in _pip_settings():
        name, equals, value = line.partition("=")
        section, dot, key = name.rpartition(".")
        if not (equals and dot) or section.startswith(":env:"):
            continue
        if f"PIP_{key.upper().replace('-', '_')}" in HOST_PIP_VARIABLES:
            continue
        if not merged.has_section(section):
            merged.add_section(section)
        with contextlib.suppress(ValueError, SyntaxError):
            merged.set(section, key, str(ast.literal_eval(value)).replace("\n", "\n  "))
    text = io.StringIO()
    merged.write(text)
    return text.getvalue(), variables


@functools.cache  # pip takes half a second
def _pip_settings() -> tuple[str, ...]:
    """The host's pip settings, as pip lists them."""
    answer = subprocess.run(
        [current().path, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return tuple(answer.stdout.splitlines())
