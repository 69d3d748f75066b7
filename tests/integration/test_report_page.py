"""The page of `specx report` in a browser: it loads nothing, and fits a phone in light and dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from bench_documents import bench_document, save

from vllm_specx.bench.document import read_document
from vllm_specx.report import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
# Only the test's copy runs anything. It lies in a frame: chromium's own windows are 500 pixels wide at least.
PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement
  parent.postMessage(JSON.stringify({
    width: root.clientWidth,
    content: root.scrollWidth,
    loaded: performance.getEntriesByType("resource").length,
    points: [...document.querySelectorAll("svg .point")].filter(point => point.getBoundingClientRect().width).length,
    background: getComputedStyle(document.body).backgroundColor,
  }), "*")
})
</script>"""
FRAME = """<!doctype html><iframe src="probed.html" width="{width}" height="900" style="border: 0"></iframe><script>
addEventListener("message", event => { document.body.dataset.found = event.data })
</script>"""
DARK = "@media (prefers-color-scheme: dark)"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    made = bench_document({"ngram": 1.2, "eagle3:1": 1.3, "eagle3:3": 1.4}, head="/heads/one")
    out = folder / "report.html"
    out.write_text(page(read_document(save(made, folder / "bench.json")), "bench.json"), encoding="utf-8")
    return out


def browse(profile: Path, target: Path, *options: str) -> str:
    """What Chromium prints; no message of the page's console may be among it."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--enable-logging=stderr"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", *options, target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_and_loads_nothing(tmp_path: Path, html: Path, width: int, scheme: str) -> None:
    text = html.read_text(encoding="utf-8")
    assert DARK in text
    policy = text[text.index('<meta http-equiv="Content-Security') : text.index("<title>")]
    wanted = "@media all" if scheme == "dark" else "@media not all"
    (tmp_path / "probed.html").write_text(text.replace(policy, PROBE).replace(DARK, wanted), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("{width}", str(width)), encoding="utf-8")
    dom = browse(tmp_path / "profile", frame, "--dump-dom", "--window-size=1400,1000")
    match = re.search(r'data-found="([^"]*)"', dom)
    assert match is not None, dom
    assert json.loads(unescape(match[1])) == {
        "width": width,
        "content": width,
        "loaded": 0,
        "points": text.count('class="point"'),
        "background": "rgb(22, 24, 27)" if scheme == "dark" else "rgb(255, 255, 255)",
    }


def test_page_is_drawn_as_it_is(tmp_path: Path, html: Path) -> None:
    shot = tmp_path / "page.png"
    browse(tmp_path / "profile", html, f"--screenshot={shot}", "--window-size=500,900")
    assert shot.stat().st_size > 10_000
