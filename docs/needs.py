"""Notes on the site's pages above command blocks that no test runs, with their requirements."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["on_page_markdown"]

NEEDS = {
    "google": ("needs a Google Cloud project", "구글 클라우드 프로젝트가 필요합니다"),
    "network": ("needs a network", "네트워크가 필요합니다"),
    "person": ("goes on until you end it", "직접 끝낼 때까지 계속됩니다"),
    "gcloud": ("needs gcloud", "gcloud가 필요합니다"),
    "repository": ("in a checkout of the repository", "저장소를 받은 폴더에서"),
    "time": ("takes minutes", "몇 분 걸립니다"),
    "recording": ("needs a recording", "녹화 파일이 필요합니다"),
    "pipeline": ("needs a service that runs pipelines", "파이프라인 서비스가 필요합니다"),
}
COMMENT = re.compile(r"^<!--\s*needs:\s*(\w+)\s*-->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Replace each comment by a line of small print, in the page's language."""
    language = 1 if page.file.src_uri.endswith(".ko.md") else 0

    def line(match: re.Match[str]) -> str:
        labels = NEEDS.get(match[1])
        return f'<p class="needs">{labels[language]}</p>\n' if labels else match[0]

    return COMMENT.sub(line, markdown)
