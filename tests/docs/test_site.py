"""The site builds without warnings, has every page, and loads no external resources."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.page_blocks import ROOT
from tests.support.commands import succeed

# What a browser loads without a click.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("use", "href"),
    ("image", "href"),
    ("form", "action"),
}
SEARCH = Path(__file__).with_name("search_site.js")
# Of those on the page; lunr-languages has the list.
KOREAN_STOP_WORDS = {"그리고", "다음으로", "반대로", "이어서"}
PASSIVE = {"canonical", "prev", "next", "alternate"}  # relations of <link> that fetch nothing


class Page(HTMLParser):
    """A page's resources, links and anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.fetched += [value for name, value in attributes.items() if (tag, name) in FETCHED]
        if tag == "link" and attributes.get("rel") not in PASSIVE:
            self.fetched.append(attributes.get("href", ""))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        self.fetched += re.findall(r"url\(['\"]?([^'\")]+)", attributes.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built like `make site`; warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": ""}
    succeed(build, cwd=ROOT, env=variables)
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    """All pages of the site, parsed."""
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_in_site_and_navigation(site: Path, built: dict[Path, Page]) -> None:
    expected = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    expected = {
        page.with_name("index.html") if page.stem == "README" else page for page in expected
    }
    assert {path.relative_to(site) for path in built} == expected | {Path("404.html")}
    listed = {Path(link.partition("#")[0]) for link in built[site / "index.html"].links}
    assert expected - listed <= {Path("index.html")}, "pages missing in the navigation"


def test_pages_have_no_external_resources(built: dict[Path, Page]) -> None:
    assert len(built) > 20
    for path, page in built.items():
        assert page.fetched, f"{path.name} has no styles"
        for address in page.fetched:
            parts = urlsplit(address)
            assert not parts.netloc, f"{path.name} fetches {address}"
            assert parts.scheme in ("", "data"), f"{path.name} fetches {address}"


def test_scripts_fetch_nothing(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        assert 'class="mermaid"' not in text, f"{path.name}: the theme loads mermaid"
        assert 'data-md-component="source"' not in text, (
            f"{path.name} requests the number of GitHub stars"
        )


def test_styles_and_images_have_no_external_resources(site: Path) -> None:
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = path.read_text("utf-8")
        fetched = re.findall(r"url\(\s*['\"]?([^'\")\s]+)", text) + re.findall(
            r"@import\s+['\"]([^'\"]+)", text
        )
        assert not [url for url in fetched if urlsplit(url).netloc], path.name
        assert "@font-face" not in text, f"{path.name} loads a font"


def test_links_and_anchors_are_valid(built: dict[Path, Page]) -> None:
    pages = {path: page for path, page in built.items() if path.name != "404.html"}
    followed = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            other = other / "index.html" if other.is_dir() else other
            assert other.exists(), f"{path.name} links to {link}"
            if parts.fragment and other in pages:
                anchor = unquote(parts.fragment)
                assert anchor in pages[other].anchors, f"{path.name} links to {link}"
            followed += 1
    assert followed > 500


def test_search_finds_korean_words(site: Path) -> None:
    """The page's own search program finds each word of the Korean tutorial, except particles."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    page = (ROOT / "docs" / "tutorial.ko.md").read_text("utf-8")
    words = sorted(set(re.findall(r"[가-힣]{3,}", page)) - KOREAN_STOP_WORDS)
    others = ["loss", "v2-8", "2.18.0"]  # "손실(loss)이" is on the Korean page
    pages_of = json.loads(succeed(["node", str(SEARCH), str(site), *words, *others]).stdout)
    assert len(words) > 100
    assert [word for word in words if "tutorial.ko.html" not in str(pages_of[word])] == []
    assert "tutorial.ko.html" in str(pages_of["loss"])
    assert all(pages_of[word] for word in others)


def test_site_contains_no_programs(site: Path) -> None:
    assert not list(site.rglob("*.py"))


def test_block_requirements_are_shown(site: Path) -> None:
    assert "needs a Google Cloud project" in (site / "tutorial.html").read_text("utf-8")
    assert "구글 클라우드 프로젝트가 필요합니다" in (site / "tutorial.ko.html").read_text("utf-8")
