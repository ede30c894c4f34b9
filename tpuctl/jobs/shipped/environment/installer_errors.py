"""What an installer's output says about a failure: the package and the reason, in one sentence.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. Knows the messages of uv and pip.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from re import Match

MAX_LENGTH = 400  # of a sentence of the installer's
CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*@")
COLORS = re.compile(r"\x1b\[[0-9;]*m")
HINT_PASSWORD = (
    "pass the password to the job as a secret: as PIP_INDEX_URL, or as uv's "
    "UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD"
)
# A certificate, in uv's and OpenSSL's words.
UNTRUSTED = re.compile(r"invalid peer certificate: UnknownIssuer|certificate verify failed")
HINT_CERTIFICATE = "if a company's authority signs its certificate, set network.ca"
# Programs that builds of extension modules need.
COMPILERS = (
    r"(?:[\w.-]*-)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|gfortran|cmake|make|ninja|cargo|rustc)"
)
MISSING_COMPILER = (
    re.compile(rf"command '(?:\S*/)?({COMPILERS})' failed: No such file"),
    re.compile(rf"unable to execute '(?:\S*/)?({COMPILERS})'"),
    re.compile(rf"No such file or directory: b?['\"](?:\S*/)?({COMPILERS})['\"]"),
    re.compile(rf"\b({COMPILERS}): (?:command )?not found"),
    re.compile(r"No (CMAKE_C(?:XX)?_COMPILER) could be found"),
    re.compile(rf"Unknown compiler\(s\): \[\['({COMPILERS})'"),
    re.compile(r"(Rust compiler|Rust) (?:is )?not (?:found|installed)|can't find Rust compiler"),
)
UV_BUILD = re.compile(r"Failed to (?:build|download and build) `([^`]+)`")
PIP_BUILD = re.compile(
    r"Failed building (?:editable|wheel) for (\S+)|Could not build wheels for ([^\s,]+)|"
    r"Failed to build ['\"]?([\w.-]+)"
)


def explain(output: str) -> str:
    """The reason of a failed installation; the last error if it is unknown."""
    text = COLORS.sub("", output)
    for reason in (
        full_disk,
        wrong_hash,
        missing_compiler,
        refused,
        unreachable,
        wrong_python,
        no_wheel,
        missing,
        failed_build,
    ):
        sentence = reason(text)
        if sentence:
            return sentence
    return last_error(text)


def download_error(output: str) -> str:
    """The reason of a failed download."""
    return explain(output)


def place(reason: str, files: Sequence[tuple[str, str]]) -> str:
    """Where the package is required that a reason starts with: " (requirements.txt:3)"; "" if none
    of these files, names and texts, has it, as if another package requires it."""
    match = re.match(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?(?=[\s=<>~!;\[]|$)", reason)
    if match is None:
        return ""
    name = r"[-_.]+".join(re.escape(part) for part in re.split(r"[-_.]+", match[0]))
    end = r"\s*(?:$|[=<>~!;@,\[\]\\#\"'])"
    in_requirements, quoted = rf"\s*{name}{end}", rf".*[\"']{name}{end}"
    locked = rf"\s*name\s*=\s*\"{name}\"\s*$"
    for path, text in files:
        is_structured = path.endswith((".toml", ".lock", ".py"))
        for pattern in (locked, quoted) if is_structured else (in_requirements,):
            for number, line in enumerate(text.split("\n"), 1):
                if re.match(pattern, line, re.IGNORECASE):
                    return f" ({path}:{number})"
    return ""


# Reasons --------------------------------------------------------------------------------------


def full_disk(text: str) -> str:
    match = re.search(r"No space left on device|Disk quota exceeded", text)
    return f"the disk of this machine is full ({match[0]})" if match else ""


def wrong_hash(text: str) -> str:
    match = re.search(
        r"Hash mismatch for `(?P<name>[^`]+)`.*?Expected:\s+(?P<expected>\S+)"
        r".*?Computed:\s+(?P<actual>\S+)",
        text,
        re.S,
    ) or re.search(
        r"DO NOT MATCH THE HASHES.*?\n\s*(?P<name>\S+)(?: \([^)]*\))? "
        r"(?:from (?P<url>\S+)|package:).*?Expected \w+ (?:or )?(?P<expected>\w+)"
        r".*?Got\s+(?P<actual>\w+)",
        text,
        re.S,
    )
    if match:
        name = match["name"]
        file = match.groupdict().get("url") or ""
        if (
            name == "unknown"
        ):  # as some versions of pip say: it is the last one that they downloaded
            file = (re.findall(r"(?m)^\s*Downloading (\S+)", text[: match.start()]) or [""])[-1]
        if "==" not in name and file:
            name = re.sub(r"-py\d.*|\.tar\.gz.*|#.*", "", file.rsplit("/", 1)[-1])
        expected, actual = (match[key].rpartition(":")[2] for key in ("expected", "actual"))
        return (
            f"{plain(name)} does not have the required hash: expected sha256 {expected}, and "
            f"downloaded {actual}; nothing was installed"
        )
    match = re.search(r"Hash mismatch for `([^`]+)`|No hashes (?:are|were) .*?`([^`]+)`", text)
    return f"{plain(match[1] or match[2])} does not have the required hash" if match else ""


def missing_compiler(text: str) -> str:
    program = next((match for match in (p.search(text) for p in MISSING_COMPILER) if match), None)
    package = build_of(text)
    if program is None or not package:
        return ""
    return (
        f"{package} has no wheel for this Python, and building it needs "
        f"{program[1] or 'the Rust compiler'}, which the image lacks: install that with job.setup, "
        f"or require a release with wheels"
    )


def refused(text: str) -> str:
    match = first(
        text,
        r"index URL \((?P<url>[^)]+)\) could not be queried due to a lack of valid authentication "
        r"credentials \((?P<status>401 \w+)\)",
        r"An index \((?P<url>[^)]+)\) returned a (?P<status>40[13] \w+)",
        r"HTTP status client error \((?P<status>40[13] \w+)\) for url \((?P<url>[^)]+)\)",
        r"Could not fetch URL (?P<url>\S+): (?P<status>40[13] Client Error: \w+) for url",
        r"HTTP error (?P<status>40[13]) while getting (?P<url>\S+)",
        r"WARNING: (?P<status>40[13]) Error, Credentials not correct for (?P<url>\S+)",
        r"(?P<status>40[13]) Client Error: \w+ for url: (?P<url>\S+)",
    )
    if match is None:
        return ""
    status = re.sub(r" Client Error(?:: )?", " ", match["status"]).strip()
    return f"the index at {host(match['url'])} asks for a password ({status}): {HINT_PASSWORD}"


def unreachable(text: str) -> str:
    match = first(
        text,
        r"HTTP status server error \((?P<cause>[^)]+)\) for url \((?P<url>[^)]+)\)",
        r"Could not fetch URL (?P<url>\S+): (?P<cause>5\d\d [^\n]+?) for url",
        r"error sending request for url \((?P<url>[^)]+)\)(?P<causes>(?:\n\s*cause: .*)*)",
        r"(?:Failed to fetch|Failed to download)[: ]*`?(?P<url>https?://[^`\s]+)`?"
        r"(?P<causes>(?:\n\s*cause: .*)+)",
        r"Could not fetch URL (?P<url>\S+): (?P<cause>(?:connection error: )?HTTPS?Conn.*)",
        r"Retrying \(.*broken by '(?P<cause>.*?)'?: (?P<url>/\S*)$",
    )
    if match is None:
        return ""
    groups = match.groupdict()
    name = host(groups["url"]) or "the index"
    cause = groups.get("cause") or ""
    if re.match(r"5\d\d ", cause):
        return f"{name} failed ({shorten(cause)})"
    if groups.get("causes"):
        cause = re.findall(r"cause: (.*)", groups["causes"])[-1]
    else:  # urllib3's, whose cause is the innermost
        cause = re.sub(r"^.*?(\[Errno|Read timed out|[Tt]imed out|too many)", r"\1", cause)
        cause = re.sub(r"['\")]+( - skipping)?$", "", cause)
    hint = f": {HINT_CERTIFICATE}" if UNTRUSTED.search(cause) else ""
    return f"{name} cannot be reached" + (f" ({shorten(cause)})" if cause else "") + hint


def wrong_python(text: str) -> str:
    match = re.search(
        r"the (?:current|requested) Python version \((?P<have>[^)]+)\) does not satisfy "
        r"Python(?P<need>\S+) and (?P<name>.+?) depends? on",
        re.sub(r"\s+", " ", text),
    )
    if match:
        return (
            f"{plain(match['name'])} requires Python {match['need']}, and the job's is "
            f"{match['have']}: set job.python"
        )
    match = re.search(
        r"interpreter resolved to Python (?P<have>\S+), which is incompatible with the "
        r"`?pylock.toml`?'s Python requirement: `(?P<need>[^`]+)`",
        text,
    )
    if match:
        return (
            f"the lock requires Python {match['need']}, and the job's is {match['have']}: set "
            f"job.python"
        )
    # pip: of the releases that it ignored, it names each one's Python.
    name = pip_requirement(text)
    match = re.search(r"require a different python version: (.+)", text)
    if match and name:
        pythons = re.findall(r"Requires-Python (\S+)", match[1])
        return (
            f"no release of {name} is for this Python (they require Python "
            f"{pythons[-1].rstrip(';')}): set job.python"
        )
    return ""


def no_wheel(text: str) -> str:
    joined = re.sub(r"\s+", " ", text)
    match = first(
        joined,
        r"Because (?:only )?(?P<name>\S+?)(?: is available and \S+)? has no wheels with a matching",
        r"Package `(?P<name>[^`]+)` can't be installed because (?:it is marked as `--no-build` "
        r"but )?(?:it )?(?:doesn't have a source|has no binary) distribution",
        r"(?P<name>\S+) has no (?:usable wheels|source distribution)",
    )
    if match:
        hint = re.search(
            r"(?:You require|You're (?:using|on)) (?P<have>[^,]+?),? but (?:we only found )?.*? "
            r"(?:with )?the following (?P<kind>[\w ]+?) tags?: (?P<tags>[^.]+?)(?: hint| *$)",
            joined,
        )
        details = (
            f" (the job has {hint['have']}, its wheels are for {hint['tags']})" if hint else ""
        )
        version = re.search(rf"`{re.escape(match['name'])}` \(v([^)]+)\)", joined)
        name = plain(match["name"])
        if version and "==" not in match["name"]:
            name += " " + version[1]
        return f"{name} has no wheel for this Python and platform{details}"
    name = pip_requirement(text)
    skipped = re.search(r"none of the wheel's tags \((?P<tags>[^)]+)\) are compatible", text)
    if name and skipped:
        tags = skipped["tags"]
        return f"{name} has no wheel for this Python and platform (there is one for {tags})"
    return ""


def missing(text: str) -> str:
    joined = re.sub(r"\s+", " ", text)
    match = first(
        joined,
        r"Because (?P<name>\S+) was not found in the (?:package registry|provided package "
        r"locations)(?: and (?P<by>.+?) depends? on (?P<need>\S+?),)?",
        r"[Bb]ecause there (?:is|are) no versions? of (?P<name>[^ ]+)"
        r"(?: and (?P<by>.+?) depends? on (?P<need>\S+?),)?",
    )
    if match:
        by = match["by"]
        is_own = by is None or by.startswith("you ")
        return f"{match['name']} does not exist in the index" + (
            "" if is_own else f" ({plain(by)} requires it)"
        )
    match = re.search(
        r"[Bb]ecause only (?P<have>.+?) (?:is|are) available and (?P<by>.+?) "
        r"(?:depends? on|require) (?P<need>\S+?),",
        joined,
    )
    if match:
        return f"{match['need']} does not exist in the index, which has {match['have']}"
    match = re.search(
        r"Could not find a version that satisfies the requirement (?P<name>.+?)"
        r"(?: \(from (?P<by>[^)]+)\))? \(from versions: (?P<versions>[^)]*)\)",
        joined,
    )
    if match:
        versions = [version.strip() for version in match["versions"].split(",")]
        which = "" if versions == ["none"] else f", which has {', '.join(versions[-5:])}"
        return f"{match['name']} does not exist in the index{which}"
    return ""


def failed_build(text: str) -> str:
    package = build_of(text)
    if not package:
        return ""
    stderr = re.search(r"\[stderr\]\n(?P<text>.*?)(?:\n\n|\nhint|\Z)", text, re.S)
    pip = re.search(r"lines of output\]\n(?P<text>.*?)\[end of output\]", text, re.S)
    printed = stderr or pip
    lines = printed["text"].strip().splitlines() if printed else []
    return f"{package} could not be built" + (f": {shorten(lines[-1])}" if lines else "")


def last_error(text: str) -> str:
    """The installer's own words: uv's first cause, or else the first or last error."""
    cause = re.search(r"No solution found[^\n]*\n\s*cause: (.+)", text)
    if cause:
        return shorten(cause[1])
    errors = re.findall(r"(?m)^error: (.+(?:\n\s*cause: .+)?)", text)
    if errors:
        return shorten(re.sub(r"\s*\n\s*cause: ", ": ", errors[0]))
    causes = re.search(r"The conflict is caused by:\n(?P<lines>(?: +\S.*\n)+)", text)
    if causes:
        return shorten("; ".join(line.strip() for line in causes["lines"].splitlines()))
    errors = [
        error
        for error in re.findall(r"(?m)^ERROR: (.+)", text)
        if not error.startswith("ResolutionImpossible")
    ]
    return shorten(errors[-1]) if errors else ""


# Parts of messages ----------------------------------------------------------------------------


def first(text: str, *patterns: str) -> Match[str] | None:
    """The match of the first pattern that has one."""
    matches: Iterator[Match[str] | None] = (re.search(p, text, re.M) for p in patterns)
    return next((match for match in matches if match), None)


def build_of(text: str) -> str:
    """The package whose build failed."""
    match = UV_BUILD.search(text)
    if match:
        return plain(match[1].partition(" @ ")[0])
    match = PIP_BUILD.search(text)
    return next((name for name in match.groups() if name), "") if match else ""


def is_not_found(text: str) -> bool:
    """Whether uv found no such package, which it also says if an index has refused."""
    return "was not found in the package registry" in text


def pip_requirement(text: str) -> str:
    """The requirement for which pip found nothing."""
    match = re.search(r"No matching distribution found for (\S+)", text)
    return match[1] if match else ""


def plain(name: str) -> str:
    """A package as people write it: "numpy 1.26.4"."""
    name = re.sub(r"^(?:all versions of|only) ", "", name.strip())
    return name.strip("`").replace("==", " ")


def host(url: str) -> str:
    """The host of an address, with its port, and without a password."""
    match = re.match(r"\w+://([^/\s?#]+)", CREDENTIALS.sub("", url))
    return match[1] if match else ""


def shorten(text: str) -> str:
    """A message as one line without passwords."""
    line = re.sub(r"\s+", " ", CREDENTIALS.sub("", text)).strip().rstrip(".")
    return line if len(line) <= MAX_LENGTH else line[: MAX_LENGTH - 1] + "…"
