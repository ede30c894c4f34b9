"""Corruption of HTTP requests as bytes, including their framing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Chance = random.Random
VERBS = (
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "BREW",
    "get",
    "M-SEARCH",
)


@dataclass(frozen=True)
class HttpRequest:
    """A raw HTTP/1.1 request.

    `is_framed`: its length is as declared. `is_found`: verb and path belong to a method.
    """

    method: str  # ID of the discovery method it was generated from
    verb: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    is_framed: bool = True
    is_found: bool = True

    def as_bytes(self) -> bytes:
        lines = [f"{self.verb} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + self.body


Distort = Callable[[Chance, HttpRequest], HttpRequest]


def _with_header(request: HttpRequest, name: str, value: str) -> HttpRequest:
    other_headers = tuple(each for each in request.headers if each[0] != name)
    return replace(request, headers=(*other_headers, (name, value)))


def _other_verb(chance: Chance, request: HttpRequest) -> HttpRequest:
    bent = replace(request, is_found=False)
    if chance.random() < 0.3:
        return _with_header(bent, "X-HTTP-Method-Override", chance.choice(VERBS))
    return replace(bent, verb=chance.choice(VERBS))


def _other_path(chance: Chance, request: HttpRequest) -> HttpRequest:
    path, mark, query = request.target.partition("?")
    odd = (
        "//",
        "/%00",
        "/%ff%fe",
        "/..",
        "/%2e%2e/",
        ":odd",
        "/x/y/z",
        "%",
        "/" * 50,
        "/" + "a" * 9000,
    )
    at = chance.randint(1, len(path))
    changed = chance.choice(
        (
            path[:at],
            path[at:] or "/",
            path[:at] + chance.choice(odd) + path[at:],
            path.upper(),
            path * 2,
        )
    )
    return replace(request, target="/" + changed.lstrip("/") + mark + query, is_found=False)


def _other_query(chance: Chance, request: HttpRequest) -> HttpRequest:
    odd = ("&&&", "=", "a=b=c", "%", "%ff=%fe", "pageSize=-1", "pageSize=1e9", "x=" + "y" * 20_000)
    mark = "&" if "?" in request.target else "?"
    many = "&".join(f"k{number}=v" for number in range(1200))
    return replace(request, target=request.target + mark + chance.choice((*odd, many)))


def _other_body(chance: Chance, request: HttpRequest) -> HttpRequest:
    body = request.body or b'{"name": "x"}'
    at = chance.randint(0, len(body))
    ways = (
        body[:at],
        body[:at] + chance.randbytes(3) + body[at:],
        chance.randbytes(200),
        b"\xff\xfe" + body.decode("latin-1").encode("utf-16-le"),
        b"\xef\xbb\xbf" + body,
        b"[" * 20_000,
        b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
        b'{"name": NaN, "id": Infinity, "x": -Infinity}',
        b'{"name": "a", "name": "b"}',
        b'{"n": ' + b"9" * 6_000 + b"}",
        b'{"name": "\\ud800"}',
        b'"' + b"x" * 300_000 + b'"',
        b"[" + b"{}," * 10_000 + b"{}]",
        b"name=x&zone=y",
        b"null",
    )
    return replace(request, body=chance.choice(ways))


def _other_header(chance: Chance, request: HttpRequest) -> HttpRequest:
    odd = (
        (
            "Content-Type",
            chance.choice(("", "text/plain", "multipart/related", "multipart/mixed; boundary=")),
        ),
        ("Content-Type", "multipart/related; boundary=x"),
        ("Content-Type", "application/json; charset=no-such-charset"),
        ("Content-Encoding", chance.choice(("gzip", "br", "deflate", "nothing"))),
        ("Accept", "application/x-protobuf"),
        ("Accept-Encoding", "gzip;q=x"),
        (
            "Range",
            chance.choice(("bytes=5-1", "bytes=-0", "bytes=a-b", "bytes=0-,1-", "lines=1-2")),
        ),
        (
            "Content-Range",
            chance.choice(
                ("bytes 5-1/3", "bytes */x", "bytes 0-9/5", "x", "bytes 0-" + "9" * 30 + "/*")
            ),
        ),
        ("If-Match", "*"),
        ("If-None-Match", '"' + "x" * 1000),
        (
            "Host",
            chance.choice(
                ("", "storage.googleapis.com", "there.storage.googleapis.com", "[::1", "a b")
            ),
        ),
        ("X-Forwarded-Proto", "gopher"),
        ("X-Goog-Hash", chance.choice(("crc32c=x", "md5", "=,=,", "crc32c=" + "A" * 500))),
        ("X-Goog-User-Project", "\u00e9"),
        ("X-Upload-Content-Length", "-5"),
        ("X-Upload-Content-Type", "no/such/type; x"),
        ("X-Goog-FieldMask", "a.b(c/"),
        ("Cookie", "x" * 5000),
        ("Expect", "200-maybe"),
    )
    return _with_header(request, *chance.choice(odd))


def _other_token(chance: Chance, request: HttpRequest) -> HttpRequest:
    odd = (
        "",
        "Bearer",
        "Bearer ",
        "Basic eDp5",
        "Bearer é",
        "bearer " + "x" * 5000,
        "Bearer a b c",
    )
    if chance.random() < 0.2:
        prefix = chance.choice(("/t/wrong", "/t/", "/t//", "/t/%00", "/t/" + "x" * 5000))
        return replace(request, target=prefix + request.target)
    return _with_header(request, "Authorization", chance.choice(odd))


DISTORTIONS: Sequence[Distort] = (
    *(
        _other_body,
        _other_body,
        _other_header,
        _other_path,
        _other_query,
        _other_verb,
        _other_token,
    ),
)


def framed(chance: Chance, request: HttpRequest) -> HttpRequest:
    """Declare the length of the body, correctly in most cases."""
    way = chance.random()
    if way < 0.94:
        if way < 0.05:
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(request.body), request.body)
            if not request.body:
                chunks = b"0\r\n\r\n"
            return replace(_with_header(request, "Transfer-Encoding", "chunked"), body=chunks)
        return _with_header(request, "Content-Length", str(len(request.body)))
    broken = (
        ("Content-Length", str(len(request.body) + 10)),
        ("Content-Length", "-1"),
        ("Content-Length", "ten"),
        ("Content-Length", str(10**15)),
        ("Transfer-Encoding", "chunked"),
        ("Transfer-Encoding", "snail"),
        ("X-Long", "x" * 100_000),
        ("A name", "with a space"),
        ("X-Control", "\x01\x7f"),
    )
    name, value = chance.choice(broken)
    framed = _with_header(request, "Content-Length", str(len(request.body)))
    return replace(_with_header(framed, name, value), is_framed=False)
