"""TPU502 secret-in-source."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU502",
    name="secret-in-source",
    severity=Severity.risk,
    summary="Secret in the source code",
    rationale=(
        "The script's folder is copied to the bucket and to every machine, and is kept with the "
        "job's record. Everyone with read access to any of them can read the secret. Pass it to "
        "the job as a secret and read it from the environment."
    ),
    bad="""\
DATABASE = "postgresql://trainer:Vq7mZk2pXw9s@db.internal/corpus"
""",
    good="""\
import os

DATABASE = os.environ["DATABASE_URL"]
""",
)

# Formats of keys: a description, required substrings, and a pattern.
PRIVATE = "a private key"
BODY = re.compile(r"[A-Za-z0-9+/=]{16,}")
KEYS = (
    ("a Google API key", ("AIza",), re.compile(r"(?<![\w-])AIza[\w-]{35}(?![\w-])")),
    (
        "a Google client secret",
        ("GOCSPX-",),
        re.compile(r"(?<![\w-])GOCSPX-[\w-]{28}(?![\w-])"),
    ),
    ("a Google access token", ("ya29.",), re.compile(r"(?<![\w.])ya29\.[\w-]{30,}")),
    (
        "a Hugging Face token",
        ("hf_", "api_org_"),
        re.compile(r"(?<!\w)(?:hf|api_org)_[A-Za-z0-9]{30,40}(?!\w)"),
    ),
    (
        "an AWS access key",
        ("AKIA", "ASIA"),
        re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"),
    ),
    (
        "a GitHub token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        re.compile(r"(?<!\w)gh[pousr]_[A-Za-z0-9]{36,}(?!\w)"),
    ),
    ("a GitHub token", ("github_pat_",), re.compile(r"(?<!\w)github_pat_\w{60,}")),
    ("a GitLab token", ("glpat-",), re.compile(r"(?<!\w)glpat-[\w-]{20,}")),
    ("a Slack token", ("xox",), re.compile(r"(?<!\w)xox[abprs]-[A-Za-z0-9-]{20,}")),
    ("an OpenAI API key", ("sk-",), re.compile(r"(?<!\w)sk-(?:proj-)?[A-Za-z0-9_-]{40,}(?!\w)")),
    ("a PyPI token", ("pypi-",), re.compile(r"(?<!\w)pypi-[\w-]{60,}")),
    (
        PRIVATE,
        ("PRIVATE KEY-----",),
        re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    ),
)
LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://([^\s/:@'\"]*):([^\s/@'\"]+)@[\w.-]+", re.IGNORECASE)
SECRET_NAMES = re.compile(
    r"(?:^|[_.-])(?:password|passwd|pwd|secret|secret_key|api_?key|access_?key|auth_?token|"
    r"access_?token|private_?key|client_?secret|token|credentials?)$|apikey$",
    re.IGNORECASE,
)
WANDB = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
SHORTEST = 6  # characters of a password
WEAK = re.compile(r"password|passwd|pwd", re.IGNORECASE)
# Values that are not secrets.
PLACEHOLDER = re.compile(
    r"example|sample|dummy|placeholder|change.?me|replace|insert|your|redacted|secret$|"
    r"^test|test$|fake|mock|todo|none|null|default|password|\*{3}|\.{3}|x{4}|0{6}|1234|"
    r"abcdef|<.*>|\$|\{|%\(|%s|^env|^projects/|^secret:|[\s/\[\]]",
    re.IGNORECASE,
)
NOT_KEYS = re.compile(
    r"example|0123456789|x{6}|0{8}|\*{3}|placeholder|redacted|your.?key", re.IGNORECASE
)
HINT = "Pass it to the job as a secret and read it from the environment:\n    "
HINT += "tpuctl run --secret NAME …"


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        yield from _secrets(module)


def _secrets(module: Module) -> Iterator[Finding]:
    by_pattern = [*_keys(module), *_logins(module)]
    lines = {finding.line for finding in by_pattern}
    yield from dict.fromkeys(by_pattern)
    yield from (finding for finding in _named_secrets(module) if finding.line not in lines)


def _keys(module: Module) -> Iterator[Finding]:
    patterns = [
        (description, pattern)
        for description, parts, pattern in KEYS
        if any(marker in module.text for marker in parts)
    ]
    if "wandb" in module.text.lower():
        patterns.append(("a Weights & Biases API key", WANDB))
    for number, text in enumerate(module.lines, 1) if patterns else ():
        for kind, pattern in patterns:
            if pattern is WANDB and "wandb" not in text.lower():
                continue
            for match in pattern.finditer(text):
                if kind == PRIVATE and not _has_body(module, number, match.end()):
                    continue
                if not NOT_KEYS.search(match[0]) and _is_mixed(match[0]):
                    yield _finding(module, number, match.start(), kind)


def _has_body(module: Module, line: int, column: int) -> bool:
    """Whether key data follows the header line."""
    rest = module.lines[line - 1][column:] + "\n" + "".join(module.lines[line : line + 1])
    return BODY.search(rest) is not None


def _logins(module: Module) -> Iterator[Finding]:
    for number, text in enumerate(module.lines, 1):
        for match in LOGIN.finditer(text) if "://" in text and "@" in text else ():
            if not PLACEHOLDER.search(match[2]) and match[1] != match[2] and len(match[2]) > 5:
                yield _finding(module, number, match.start(2), "a password in a URL")


def _named_secrets(module: Module) -> Iterator[Finding]:
    """Strings assigned to names such as `password` or `api_key`."""
    texts = (node for node in module.of_types(ast.Constant) if isinstance(node.value, str))
    parents = (module.parents[text] for text in texts if len(text.value) >= SHORTEST)
    for node in dict.fromkeys(parents):
        for name, value in _assigned_names(node):
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                continue
            if SECRET_NAMES.search(name) and _is_secret(name, value.value):
                column = module.column(value.lineno, value.col_offset)
                yield _finding(module, value.lineno, column, f"the value of `{name}`")


def _assigned_names(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((name, value) for target in targets for name in _name(target))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from ((name, value) for name in _name(target))
        case ast.keyword(arg=str() as name, value=value):
            yield name, value
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        case ast.Call(
            func=ast.Attribute(attr="setdefault"), args=[ast.Constant(value=str() as name), value]
        ):
            yield name, value


def _name(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            yield name


def _is_secret(name: str, value: str) -> bool:
    """Whether a string looks like a secret rather than a placeholder."""
    if PLACEHOLDER.search(value) or SECRET_NAMES.search(value):
        return False
    if WEAK.search(name):
        return len(value) >= SHORTEST and _entropy(value) >= 2.5 and not value.isalpha()
    return len(value) >= 16 and _entropy(value) >= 3.2 and _is_mixed(value)


def _is_mixed(text: str) -> bool:
    """Whether a string mixes kinds of characters, unlike a word."""
    if " " in text:
        return True
    kinds = (any(char.isdigit() for char in text), any(char.isupper() for char in text))
    return any(kinds) and len(set(text)) > 6


def _entropy(text: str) -> float:
    """Shannon entropy in bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def _finding(module: Module, line: int, column: int, description: str) -> Finding:
    text = f"{description} is in the source code"
    return Finding(RULE.code, RULE.severity, module.path, line, column, text, HINT)
