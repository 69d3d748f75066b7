"""Pieces of a page. Strings are text and get escaped; `Html` is what is markup already."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from vllm_specx.bench.document import one_line

STYLE: Final = """
:root { color-scheme: light dark; --text: #1c1e21; --page: #fff; --soft: #62676d; --line: #d9dce0; --mark: #0b62c4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6e8; --page: #16181b; --soft: #9ba1a8; --line: #3a3f45; --mark: #6cb2ff; }
}
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--page); color: var(--text);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.lead { font-size: 1.1rem; font-weight: 600; } .soft, caption { color: var(--soft); }
.scroll { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { text-align: left; padding: .3rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; } td.wide { width: 40%; min-width: 7rem; }
th { font-weight: 600; }
td.key, td.long { text-align: left; vertical-align: top; white-space: normal; min-width: 6rem; }
td.long { overflow-wrap: anywhere; min-width: 12rem; width: 80%; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem; }
svg { display: block; } svg.bar { width: 100%; height: 1.2rem; } svg.curve { width: 100%; max-width: 30rem; }
svg.trend { width: 100%; height: 1.8rem; } .trend polyline { fill: none; stroke: var(--mark); stroke-width: 1.5;
  vector-effect: non-scaling-stroke; }
svg text { fill: var(--soft); font-size: 11px; }
.one, .axis { stroke: var(--line); stroke-width: 1.5; } .one { stroke-dasharray: 3 3; stroke: var(--soft); }
.interval { stroke: var(--mark); stroke-width: 2; } .point { fill: var(--mark); }
.formula { fill: none; stroke: var(--soft); stroke-width: 1.5; }
""".strip()


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def safe(what: object) -> str:
    """Markup as it is, anything else as escaped text."""
    return what if isinstance(what, Html) else escape(one_line(what))


def tag(name: str, what: object, kind: str = "") -> Html:
    """One element."""
    attribute = f' class="{kind}"' if kind else ""
    return Html(f"<{name}{attribute}>{safe(what)}</{name}>")


def join(parts: Iterable[Html]) -> Html:
    """Markup after markup, a line each."""
    return Html("\n".join(parts))


def table(
    rows: Iterable[Sequence[object]], head: Sequence[str] = (), kinds: Sequence[str] = (), caption: str = ""
) -> Html:
    """A table that scrolls by itself where the screen is narrow; `kinds` are classes of its columns."""

    def line(name: str, cells: Sequence[object]) -> Html:
        padded = [*kinds, *[""] * (len(cells) - len(kinds))]
        return tag(
            "tr", Html("".join(tag(name, cell, kind) for cell, kind in zip(cells, padded, strict=True)))
        )

    parts = [tag("caption", caption)] if caption else []
    if head:
        parts.append(tag("thead", line("th", head)))
    parts.append(tag("tbody", join(line("td", row) for row in rows)))
    return tag("div", tag("table", join(parts)), "scroll")


def document(title: str, body: Html) -> str:
    """A whole page that loads nothing and runs nothing."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{safe(title)}</title>
<style>
{STYLE}
</style>
</head>
<body>
{body}
</body>
</html>
"""
