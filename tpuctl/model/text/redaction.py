"""Takes out of texts what their reader should not see: secrets, and what identifies people.

Two steps, since a record of commands stays on this machine and an archive leaves it:

- `without_secrets` replaces passwords, keys and tokens, before anything is written.
- `Redactor` also replaces e-mail addresses, IP addresses, projects, billing accounts and public
  keys, each by the same placeholder wherever it stands: `account-1`, `address-2`.

A value without a known format, under a name that says nothing, is recognized only if the caller
knows it (`secret_values`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

SECRET = "[secret]"
MIN_SECRET_LENGTH = 6  # shorter values are words that stand everywhere

KEYS = ("api", "access", "auth", "account", "private", "encryption", "signing")
WORDS = ("token", "passwd", "password", "passphrase", "credential", "authorization", "cookie")
# A word that names a secret. In a stack file, `NAME: secret:x` is the source of one.
NAME = rf"""(?:(?:{"|".join(KEYS)})[-_]?key|secret(?!:\w)|(?<!: )(?<!: ['"])secret|[_-]pwd"""
# Not in words such as tokens, tokenizer and secret-manager.
NAME += rf"|{'|'.join(WORDS)})(?!(?<=token)(?:s|i[sz])|[-_]?manager)"
# Names of environment variables that hold a secret or the path of one.
VARIABLE = rf"(?i){NAME}|(?:^|_)(?:key|pass|auth)$"
# Values of such names that are none: literals, sources of secrets, small numbers, placeholders.
HARMLESS = r"(?:env(?::\w+)?|secret:[\w@-]+|projects/[\w./:-]+|null|none|true|false|auto|\d{1,5}"
HARMLESS += r"|bearer|basic|secret-\d+|\[secret\])"
VALUE = (
    rf"""(?!\s*\\?["']?{HARMLESS}(?![^\s"',\\}}\])]))"""
    r"""(?:\\"(?P<escaped>(?:(?!\\").)+)\\"|"(?P<double>(?:\\.|[^"\\])+)\""""
    r"""|'(?P<single>(?:\\.|[^'\\])+)'|(?P<plain>[^\s"',;&{}\[\]()<>\\]+))"""
)
NAME_PARTS = ("secret", "pwd", *WORDS, *(f"{key}{dash}key" for key in KEYS for dash in "-_"))
NAME_PARTS += tuple(f"{key}key" for key in KEYS)
# Patterns of secrets, with words of which a text contains one, in lower case, if it matches:
# words are found much faster. Patterns are compiled when they are needed.
FORMATS = (
    (
        ("private key-----",),
        r"(?s)-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    ),
    # The beginnings of {"type":, { "type":, {"private_key and -----BEGIN in base64
    (
        ("eyj0exbli", "ewogicj0exbl", "ewogicaginr5cguio", "eyaidhlwzs", "ls0tls1crudjti"),
        r"(?<![\w+/-])(?:eyJ0eXBlI|ewogICJ0eXBl|ewogICAgInR5cGUiO|eyAidHlwZS|LS0tLS1CRUdJTi)"
        r"[\w+/=-]{20,}(?:\s[\w+/=-]{40,})*",
    ),
    (("eyj",), r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),  # JSON web tokens
    # Google's access tokens, refresh tokens, API keys and client secrets
    (("ya29.",), r"(?<![\w.])ya29\.[\w.-]{8,}"),
    (("1//",), r"(?<!\w)1//[\w-]{20,}"),
    (("aiza", "gocspx-"), r"(?<![\w-])(?:AIza[\w-]{30,}|GOCSPX-[\w-]{10,})"),
    (
        (
            *("hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
            *("xox", "sk-", "pypi-", "npm_"),
        ),
        r"(?<!\w)(?:hf_|api_org_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|pypi-|npm_)"
        r"[\w-]{16,}",
    ),
    (("akia", "asia"), r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"),
    # https://user:…@host, and a token instead of the user's name
    (("://",), r"""(?i)\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@'"]*:(?P<plain>[^\s/'"]+)(?=@)"""),
    (("://",), r"""(?i)\b[a-z][a-z0-9+.-]{0,20}://(?P<plain>[\w-]{20,})(?=@)"""),
    (("/t/",), r"(?<=/t/)[\w-]{32,}"),  # the local cloud's, for clients of Cloud Storage
    # Signatures of URLs
    (("signature=", "sig="), r"(?i)(?:[?&]sig|x-(?:goog|amz)-signature)=(?P<plain>[\w%+/=-]{8,})"),
)
# The values of names.
NAMED = (
    (("bearer ", "basic "), r"(?:(?<=[Bb]earer )|(?<=[Bb]asic ))[\w.~+/=-]{8,}"),
    # password=…, "token": "…", HF_TOKEN: …
    (NAME_PARTS, rf"""(?i){NAME}[\w-]{{0,40}}(?:\\?["'])?\s*[:=]\s*{VALUE}"""),
    # An entry of metadata, in JSON and as Google's messages are printed.
    (
        NAME_PARTS,
        rf"""(?i)["']?key["']?:\s*["'][\w.-]{{0,60}}?{NAME}[\w.-]*["'],?\s*"""
        rf"""["']?value["']?:\s*{VALUE}""",
    ),
    # "--api-key", "…", in a list of arguments
    (
        NAME_PARTS,
        rf"""(?i)["']--?[\w-]{{0,40}}?{NAME}[\w-]*\\?["'],\s*(?=\\?["'])(?!\\?["']-){VALUE}""",
    ),
    # --api-key …, on a command line
    (NAME_PARTS, rf"(?i)--[\w-]{{0,40}}?{NAME}[\w-]*\s+(?!-){VALUE}"),
)
SECRETS = FORMATS + NAMED

EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}", re.IGNORECASE)
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.IGNORECASE)
PROJECT = re.compile(r"\bprojects/((?:[a-z][\w-]*\.[\w.-]+:)?[a-z][\w-]*[\w]|\d{6,})")
BILLING = re.compile(r"\b[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}\b")
# With its comment, which names a person and a computer.
PUBLIC_KEY = re.compile(r"(?<![\w/+])AAAA[A-Za-z0-9+/]{40,}={0,2}(?: [\w.@+-]+)?")
# Google's projects of images, and placeholders.
PUBLIC_PROJECT = re.compile(r"(?:debian|ubuntu-os|rocky-linux|cos|rhel|suse)-cloud|project-\d+")


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """The values of variables whose names say that they are secret."""
    values = {value for name, value in environment.items() if re.search(VARIABLE, name)}
    return {value for value in values if len(value) >= MIN_SECRET_LENGTH}


def arguments_without_secrets(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """The words of a command line with `[secret]` for values of options and variables whose names
    say that they are secret (`--password X`, `--api-key=X`, `HF_TOKEN=X`) and for what has the
    format of a secret; and those values, except of names that often say something else, such as
    `--sort-key`."""
    line: list[str] = []
    values: set[str] = set()
    option = ""  # before the word, if it names a secret
    for word in arguments:
        name, equals, value = word.partition("=")
        is_value = option and not word.startswith("-")
        names_secret = re.fullmatch(r"-{0,2}\w[\w.-]{0,60}", name) is not None and re.search(
            VARIABLE, name.lstrip("-").replace("-", "_")
        )
        if is_value:
            name, equals, value = "", "", word
        is_hidden = bool(is_value or (names_secret and value)) and not _is_harmless(option, value)
        line.append(f"{name}{equals}{SECRET}" if is_hidden else without_secrets(word))
        if not is_hidden:
            values |= named_secrets(word)
        elif re.search(f"(?i){NAME}", option if is_value else name):
            values.add(value)
        option = name if names_secret and not equals and name.startswith("-") else ""
    return line, {value for value in values if len(value) >= MIN_SECRET_LENGTH}


def _is_harmless(option: str, value: str) -> bool:
    """`--secret` of `tpuctl run` has the name of a variable, not its value."""
    is_name = option == "--secret" and re.fullmatch(r"[A-Z][A-Z0-9_]*(=env)?", value)
    return bool(is_name) or re.fullmatch(f"(?i){HARMLESS}", value) is not None


def named_secrets(text: str) -> set[str]:
    """The values in a text that `without_secrets` would replace."""
    values: set[str] = set()

    def collect(value: str) -> str:
        values.add(value)
        return SECRET

    _replace_secrets(text, (), collect)
    return values


def without_keys(text: str) -> str:
    """The text with `[secret]` for what has the format of a key or token, whatever its name.

    For messages, which name options and variables that hold secrets.
    """
    return _replace_secrets(text, (), lambda value: SECRET, FORMATS)


def without_secrets(text: str, values: Iterable[str] = ()) -> str:
    """The text with `[secret]` for these values, for what has the format of a key or token, and
    for the values of names such as `password`."""
    return _replace_secrets(text, values, lambda value: SECRET)


def _replace_secrets(
    text: str,
    values: Iterable[str],
    placeholder: Callable[[str], str],
    patterns: Sequence[tuple[Sequence[str], str]] = SECRETS,
) -> str:
    for value in sorted(values, key=len, reverse=True):
        for form in {value, json.dumps(value)[1:-1], quote(value, safe="")}:
            if form in text:
                text = text.replace(form, placeholder(value))

    def hide(match: re.Match[str]) -> str:
        start, end = (place - match.start() for place in match.span(match.lastgroup or 0))
        return f"{match[0][:start]}{placeholder(match[match.lastgroup or 0])}{match[0][end:]}"

    lowered = text.lower()
    for words, pattern in patterns:
        if any(word in lowered for word in words):
            text = re.sub(pattern, hide, text)
    return text


class Redactor:
    """Replaces secrets and identifying names, the same one by the same placeholder in all texts.

    redactor = Redactor(secrets=["hunter22"], projects=["my-project"])
    assert redactor.redact("ann@example.com in my-project") == "account-1 in project-1"
    """

    def __init__(
        self, *, secrets: Iterable[str] = (), projects: Iterable[str] = (), home: str = ""
    ) -> None:
        self._secrets = {value for value in secrets if len(value) >= MIN_SECRET_LENGTH}
        self._projects = {project for project in projects if project}
        self._home = home.rstrip("/")
        self._placeholders: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """How many different values of each kind were replaced."""
        return dict(sorted(self._numbers.items()))

    def redact(self, text: str) -> str:
        text = _replace_secrets(
            text, self._secrets, lambda value: self._placeholder("secret", value)
        )
        if self._home:
            text = re.sub(rf"{re.escape(self._home)}(?![\w.-])", "~", text)
        text = PUBLIC_KEY.sub(lambda match: self._placeholder("public-key", match[0]), text)
        text = EMAIL.sub(self._account, text)
        text = BILLING.sub(lambda match: self._placeholder("billing-account", match[0]), text)
        self._projects |= {*PROJECT.findall(text)}
        for project in sorted(self._projects, key=len, reverse=True):
            if project in text and not PUBLIC_PROJECT.fullmatch(project):
                placeholder = self._placeholder("project", project)
                text = re.sub(rf"(?<!\w){re.escape(project)}(?!\w)", placeholder, text)
        text = IPV6.sub(self._address, text)
        return IPV4.sub(self._address, text)

    def _account(self, match: re.Match[str]) -> str:
        kind = "service-account" if match[0].endswith("gserviceaccount.com") else "account"
        return self._placeholder(kind, match[0].lower())

    def _address(self, match: re.Match[str]) -> str:
        """Loopback and `0.0.0.0` stay: every machine has them."""
        import ipaddress

        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._placeholder("address", str(address))

    def _placeholder(self, kind: str, value: str) -> str:
        key = f"{kind} {value}"
        if key not in self._placeholders:
            self._numbers[kind] += 1
            self._placeholders[key] = f"{kind}-{self._numbers[kind]}"
        return self._placeholders[key]
