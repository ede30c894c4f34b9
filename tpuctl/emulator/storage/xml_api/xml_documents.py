"""Documents of the XML API."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from tpuctl.emulator.state.errors import ApiError, invalid

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"  # expected by google-cloud-storage

# Elements in order: a name with a text, or with child elements.
Elements = Iterable[tuple[str, "str | Elements"]]


class XmlError(ApiError):
    """An error of the XML API alone, with the elements that follow its code and message."""

    def __init__(
        self, http: int, code: str, message: str, elements: Iterable[tuple[str, str]] = ()
    ) -> None:
        status = "PERMISSION_DENIED" if http == 403 else "INVALID_ARGUMENT"
        super().__init__(status, message, http=http)
        self.code = code
        self.elements = tuple(elements)


def error_text(code: str, message: str, elements: Iterable[tuple[str, str]] = ()) -> str:
    """The document of an error."""
    content = _inner([("Code", code), ("Message", message), *elements])
    return f"<?xml version='1.0' encoding='UTF-8'?><Error>{content}</Error>"


def document(root: str, elements: Elements) -> web.Response:
    """A response with an XML document."""
    text = f"<?xml version='1.0' encoding='UTF-8'?><{root} xmlns='{NAMESPACE}'>"
    return web.Response(
        body=f"{text}{_inner(elements)}</{root}>".encode(),
        content_type="application/xml",
        charset="UTF-8",
    )


def _inner(elements: Elements) -> str:
    return "".join(
        f"<{name}>{escape(value) if isinstance(value, str) else _inner(value)}</{name}>"
        for name, value in elements
    )


def parse(body: bytes, root: str) -> ElementTree.Element:
    """Parse a client's document, with the namespace removed from names."""
    try:
        if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
            raise ElementTree.ParseError("declarations are not allowed")
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise invalid(f"The XML is malformed: {error}", reason="MalformedXML") from error
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    if tree.tag != root:
        raise invalid(f"The XML is not a {root}.", reason="MalformedXML")
    return tree
