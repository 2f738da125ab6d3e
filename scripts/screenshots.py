"""Makes the pictures of docs/dashboard.md anew: pages of a made-up fleet, in light and dark, wide and on a phone.

`PYTHONPATH=.:tests .venv/bin/python scripts/screenshots.py [FOLDER]`, by default docs/images. It needs Debian's chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize
from support.dashboards import Dashboard, chromium, dashboard, until
from support.made_up_fleet import STORY

JOBS = 240
PAGES = {"fleet": "/?state=open", "job": f"/jobs/{STORY}", "costs": "/costs"}
SHAPES: dict[str, ViewportSize] = {"wide": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}


def shoot(browser: Browser, place: Dashboard, folder: Path) -> None:
    """All pictures: what is seen without scrolling."""
    for shape, viewport in SHAPES.items():
        for scheme in ("light", "dark"):
            dark = scheme == "dark"
            context = place.context(browser, viewport=viewport, color_scheme="dark" if dark else "light")
            page = context.new_page()
            for name, path in PAGES.items():
                page.goto(place.url + path, wait_until="load")
                until(page, "document.querySelector('main p[data-soon]') === null")
                page.screenshot(path=folder / f"{name}-{shape}-{scheme}.png")
            context.close()


def main() -> None:
    """Into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "docs" / "images")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, dashboard(Path(place), JOBS) as made, chromium() as browser:
        shoot(browser, made, folder)
    print(f"{sum(f.stat().st_size for f in folder.glob('*.png')) >> 10} KiB in {folder}")


if __name__ == "__main__":
    main()
