"""The elements of a page for people: HTML in which every text is escaped because it is no `Html`, and how it looks.

    tag("p", "Reason: ", tag("q", reason))        # whatever the reason says, it is text

Nothing is loaded from elsewhere and nothing runs. Light, dark, narrow and on paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape


class Html(str):
    """Text that is HTML already; any other is escaped where it becomes part of it."""

    __slots__ = ()


def tag(name: str, *content: object, css: str = "") -> Html:
    """Return an element around `content`, one thing after the other; None is nothing."""
    opening = f'{name} class="{escape(css)}"' if css else name
    return Html(f"<{opening}>{joined(content)}</{name}>")


def joined(content: Iterable[object]) -> Html:
    """Return one thing after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in content if part is not None))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table; of a narrow screen each cell takes a line, behind the head of its column."""
    body = [
        tag("tr", *(tag("td", tag("span", head), cell) for head, cell in zip(heads, row, strict=True))) for row in rows
    ]
    return tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *body))


def pairs(rows: Iterable[tuple[object, object]]) -> Html:
    """Return names and what they stand for."""
    return tag("dl", *(joined((tag("dt", name), tag("dd", value))) for name, value in rows))


def listed(items: Iterable[object]) -> Html:
    """Return a list."""
    return tag("ul", *(tag("li", item) for item in items))


def code(text: object) -> Html:
    """Return what is to be compared letter by letter: digests, names, commands."""
    return tag("code", text)


def section(heading: str, *content: object, is_wide: bool = False) -> Html:
    """Return a part of the page, its heading beside it; above it if it `is_wide`."""
    return tag("section", tag("h2", heading), tag("div", *content), css="wide" if is_wide else "")


def document(title: str, *body: object) -> str:
    """Return the whole page."""
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{escape(title)}</title>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{tag("main", *body)}</body></html>'


# -- numbers and times as text ---------------------------------------------------------------------------------------------


def moment(time_ms: object) -> str:
    """Return a time in ms since 1970, in UTC."""
    if not isinstance(time_ms, int):
        return str(time_ms)
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms since 1970"


def counted(count: object, what: str, plural: str = "") -> str:
    """Return a number and what is counted: `1 file`, `2,000 files`."""
    return f"{number(count)} {what if count == 1 else plural or what + 's'}"


def number(value: object) -> str:
    """Return a number as people write it."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def size(count: object) -> str:
    """Return bytes in a unit that fits: `950 bytes`, `1.4 MB`."""
    if not isinstance(count, int) or count < 1_000:
        return counted(count, "byte")
    value, unit = count / 1_000, "kB"
    for greater in ("MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1_000, greater
    return f"{value:.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def span(time_ms: object) -> str:
    """Return a duration in ms in the greatest unit that divides it: `1 day`, `90 minutes`."""
    if isinstance(time_ms, int) and time_ms > 0:
        for unit, unit_ms in _UNITS_MS:
            if time_ms % unit_ms == 0:
                return counted(time_ms // unit_ms, unit)
    return f"{number(time_ms)} ms"


_STYLE = """
:root{color-scheme:light dark;--page:#eef1f4;--sheet:#fff;--ink:#17202b;--soft:#55616f;--line:#d9dfe6;--fill:#f4f6f8;
--good:#0b6b3c;--bad:#a3161b;--warn:#835200}
@media (prefers-color-scheme:dark){:root{--page:#0f1318;--sheet:#181e25;--ink:#e7ebf0;--soft:#a3afbc;--line:#323b46;
--fill:#212932;--good:#5fd399;--bad:#ff8b86;--warn:#f0b95c}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:940px;margin:40px auto;background:var(--sheet);border:1px solid var(--line);border-radius:12px;padding:48px 56px}
p,ul{margin:0 0 10px}ul{padding-left:20px}li{margin-bottom:4px}
.kind{margin:0;color:var(--soft);font-size:14px;font-weight:600;letter-spacing:.08em;text-transform:uppercase}
h1{margin:4px 0 8px;font-size:30px;line-height:1.25;font-weight:650;text-wrap:balance}
.sub{color:var(--soft);font-size:14px;margin-bottom:24px;overflow-wrap:anywhere}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.notice{border:1px solid;border-left-width:6px;border-radius:6px;padding:10px 16px;margin:0 0 14px}
.notice+section{margin-top:24px}
.notice b{display:block}.notice span{color:var(--ink)}
section{display:grid;grid-template-columns:190px 1fr;gap:0 28px;padding:22px 0 12px;border-top:1px solid var(--line)}
h2{font-size:16px;line-height:1.6;margin:0;font-weight:650}
.figures{margin:36px 0 0;padding-top:24px;border-top:3px solid var(--line);font-size:22px;font-weight:650}
.figures+p{color:var(--soft);font-size:15px;margin-bottom:20px}
h3{font-size:14px;margin:18px 0 6px;color:var(--soft);font-weight:600}h3:first-child{margin-top:3px}
table{border-collapse:collapse;width:100%;font-size:14px;margin-bottom:12px}
th{text-align:left;color:var(--soft);font-weight:600}td{font-variant-numeric:tabular-nums}td>span{display:none}
th,td{padding:5px 16px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}td:last-child{padding-right:0}
.wide{display:block}.wide h2{margin-bottom:8px}td code{font-size:12px}td{overflow-wrap:break-word}
dl{display:grid;grid-template-columns:200px 1fr;gap:5px 14px;margin:0 0 12px;font-size:14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
q{font-style:italic}
code{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
.command{display:block;background:var(--fill);border-radius:6px;padding:8px 12px;margin:4px 0 10px}
@media screen and (max-width:760px){main{margin:0;border:0;border-radius:0;padding:28px 20px}
section{display:block}h2{margin-bottom:6px}
h1{font-size:25px}dl{display:block}dd{margin-bottom:8px}thead{display:none}
table,tbody,tr,td{display:block}tr{border-bottom:1px solid var(--line);padding:6px 0}
td{border:0;padding:1px 0}td>span{display:inline-block;min-width:185px;padding-right:8px;color:var(--soft)}}
@media print{:root{color-scheme:light;--page:#fff;--sheet:#fff;--ink:#000;--soft:#444;--line:#bbb;--fill:#f2f2f2;
--good:#0b6b3c;--bad:#a3161b;--warn:#6d4400}@page{margin:16mm}
body{font-size:10pt;line-height:1.45}main{max-width:none;margin:0;border:0;padding:0}h1{font-size:19pt}
h2{font-size:10pt;line-height:1.45}.kind,.sub,table,dl,.figures+p{font-size:9pt}.notice{padding:2mm 4mm}
section{grid-template-columns:36mm 1fr;padding:4mm 0 1mm}p,ul{margin-bottom:2mm}h2,h3,.figures{break-after:avoid}
dl{grid-template-columns:46mm 1fr;gap:1mm 4mm}th,td{padding:1mm 4mm 1mm 0}.figures{font-size:15pt}
tr,li,.notice,dd{break-inside:avoid}
.command{border:1px solid var(--line)}dd code,td code{font-size:7pt}
.figures{break-before:page;border:0;margin:0;padding:0}code{font-size:8.5pt}}
"""
