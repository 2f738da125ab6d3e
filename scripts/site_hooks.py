"""Hooks of MkDocs: pages of the repository that lie outside docs/ become pages of the site, and links to them go there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # path in the repository -> page of the site
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "config.example.toml": "reference/configuration.md",
    "tests/README.md": "tests.md",
    "terraform/aws/README.md": "terraform-aws.md",
    "terraform/gcp/README.md": "terraform-google.md",
}
ADDED = {page: path for path, page in OUTSIDE.items() if page not in ("index.md", "reference/configuration.md")}
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for page, path in ADDED.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of a page lead to where its target is on the site; code outside of it is named, not linked."""
    here = page.file.src_uri
    if "\n## " not in markdown:  # no table of contents: its column is the page's
        page.meta.setdefault("hide", ["toc"])
    source = posixpath.dirname(ADDED.get(here, f"docs/{here}"))

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(source, found[2]))
        site = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if site == "design":
            site = "architecture.md"
        if site:
            return f"[{found[1]}]({posixpath.relpath(site, posixpath.dirname(here) or '.')}{found[3] or ''})"
        return found[1] if (ROOT / path).exists() and not path.startswith("docs/") else found[0]

    return LINK.sub(target, markdown)
