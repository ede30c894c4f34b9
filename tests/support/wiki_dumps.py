"""Wikipedia dumps for tests, in the format of https://www.mediawiki.org/xml/export-0.11.xsd."""

from __future__ import annotations

import bz2
from collections.abc import Sequence
from xml.sax.saxutils import escape

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.mediawiki.org/xml/export-0.11/ \
http://www.mediawiki.org/xml/export-0.11.xsd" version="0.11" xml:lang="ko">
  <siteinfo>
    <sitename>위키백과</sitename>
    <dbname>kowiki</dbname>
    <base>https://ko.wikipedia.org/wiki/</base>
    <generator>MediaWiki 1.45.0</generator>
    <case>first-letter</case>
    <namespaces>
      <namespace key="-2" case="first-letter">미디어</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">토론</namespace>
      <namespace key="6" case="first-letter">파일</namespace>
      <namespace key="14" case="first-letter">분류</namespace>
    </namespaces>
  </siteinfo>
""".encode()
TAIL = b"</mediawiki>\n"


def page(
    title: str, text: str, *, namespace: int = 0, redirect: str = "", model: str = "wikitext"
) -> bytes:
    """One <page> with one revision."""
    leads = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>7</id>
{leads}    <revision>
      <id>8</id>
      <parentid>6</parentid>
      <timestamp>2025-10-01T00:00:00Z</timestamp>
      <contributor>
        <username>아무개</username>
        <id>3</id>
      </contributor>
      <comment>고침</comment>
      <origin>8</origin>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" sha1="0" xml:space="preserve">{escape(text)}</text>
      <sha1>0</sha1>
    </revision>
  </page>
""".encode()


def whole(pages: Sequence[bytes]) -> bytes:
    """The XML of a dump."""
    return HEAD + b"".join(pages) + TAIL


def multistream(pages: Sequence[bytes], each: int = 100) -> bytes:
    """A dump packed like Wikimedia's: head, groups of pages, and end are bzip2 streams."""
    groups = [b"".join(pages[start : start + each]) for start in range(0, len(pages), each)]
    return b"".join(bz2.compress(part) for part in (HEAD, *groups, TAIL))
