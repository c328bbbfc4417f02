"""A report as one HTML page that needs nothing else: style and plots are inside it, and no script runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

COLUMNS: Final = 120  # that one plot shows
WIDE, NARROW = 1110, 520  # plots, in units that are pixels on a full screen, so that words are as large in each
HEIGHT, LEFT, BOTTOM, TOP = 220, 56, 26, 10
LETTERS, LETTER = 36, 7.2  # of a name in a ranking: how many are shown, and how wide one is in a wide font

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#66727f;--line:#dfe4e8;--paper:#fbfbf9;--card:#fff;--a:#2f6f9f;
--b:#c9822b;--c:#b5434a;--d:#4d8a5b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#95a0ab;--line:#2c353e;--paper:#14191e;--card:#1b2229;
--a:#6db0e0;--b:#e0a458;--c:#e0757b;--d:#7fbf8e}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 20px 60px}h1{font-size:26px;margin:0}h2{font-size:16px;margin:0 0 2px}
p{margin:0 0 10px;color:var(--soft)}.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));
gap:12px;margin:22px 0}.figure,section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:14px 16px}.figure b{display:block;font-size:24px;font-variant-numeric:tabular-nums}
.figure span{color:var(--soft);font-size:13px}.plots{display:grid;gap:14px;
grid-template-columns:repeat(auto-fit,minmax(min(520px,100%),1fr))}
section.wide{grid-column:1/-1}svg{width:100%;height:auto;display:block}text{fill:var(--soft);font-size:11px}
text.name{fill:var(--ink);font-size:12px}.a{fill:var(--a)}.b{fill:var(--b)}.c{fill:var(--c)}.d{fill:var(--d)}
.axis{stroke:var(--line)}.curve{fill:none;stroke:var(--a);stroke-width:2}.under{fill:var(--a);opacity:.14}
.key{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px}.key.a{background:var(--a)}
.key.b{background:var(--b)}.key.c{background:var(--c)}.ok{color:var(--d)}.bad{color:var(--c)}
footer{margin-top:26px;color:var(--soft);font-size:13px}
"""


def _batches(count: int) -> str:
    return f"{count:,} batch" + ("" if count == 1 else "es")


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    name = escape(str(found["pipeline"]))
    made = datetime.fromtimestamp(found["made_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = "".join(section for section in _sections(found) if section)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # the escaping is what protects; this is for the day somebody forgets it
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{name}: report</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{name}</h1><p>{made} · {_batches(found['totals']['batches'])}</p>{_figures(found)}"
        f'<div class="plots">{body}</div><footer>headrace {escape(str(found["headrace"]))}. '
        "The ledger is counted from file footers and the sink's receipts.</footer></main></body></html>"
    )


def _figures(found: dict[str, Any]) -> str:
    totals, rescues = found["totals"], found["rescues"]
    word = '<span class="ok">balanced</span>' if totals["exact"] else '<span class="bad">NOT balanced</span>'
    items = [
        (f"{totals['rows_in']:,}", "rows read"),
        (f"{totals['out']:,}", "out"),
        (f"{totals['duplicates']:,}", "duplicates"),
        (f"{totals['quarantined']:,}", "quarantined"),
        *((f"{rows:,}", f"to {escape(name)}") for name, rows in totals["routes"].items()),
        (f"{found['dead_letters']['count']:,}", "dead letters"),
    ]
    if rescues["count"]:
        items.append((_span(rescues["p50"]), f"median of {rescues['count']:,} rescues"))
    cards = "".join(f'<div class="figure"><b>{value}</b><span>{what}</span></div>' for value, what in items)
    return f'<div class="figures">{cards}<div class="figure"><b>=</b>{word}</div></div>'


def _sections(found: dict[str, Any]) -> list[str]:
    columns = found["columns"].items()
    return [
        _section("Throughput", "Rows by event time.", _curve(found["throughput"]), wide=True),
        _section("Ledger", _LEDGER_KEY, _stacks(found["ledger"])),
        _section("Speed", "Rows a second of each batch.", _speed(found["ledger"])),
        *(_section(f"By {escape(name)}", "", _ranking(rows)) for name, rows in columns),
        _section("Quarantine", "What rows were put aside for.", _ranking(found["quarantine"], "c")),
        _section("Poison ranking", "What buried messages died of.", _ranking(found["dead_letters"]["ranking"], "c")),
        _section("Attempts of buried messages", "", _attempts(found["attempts"]["buried"])),
        _section("Attempts of all messages", "", _attempts(found["attempts"]["all"])),
        _section("Rescue latency", _rescue_words(found["rescues"]), _rescues(found["rescues"]["ms"]), wide=True),
    ]


_LEDGER_KEY = "".join(
    f'<span class="key {colour}"></span>{word}'
    for colour, word in zip("abc", ("out", "duplicates", "quarantined"), strict=True)
)


def _section(title: str, words: str, plot: str, *, wide: bool = False) -> str:
    """A card; nothing where there is nothing to show."""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{title}</h2><p>{words}</p>{plot}</section>" if plot else ""


# ── plots ────────────────────────────────────────────────────────────────────────────────────────────


def _svg(inside: str, width: int, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{inside}</svg>'


def _frame(most: float, shown: Callable[[float], str], width: int) -> str:
    """Three lines across, with what they stand for."""
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(shown(most * share))}</text>')
    return "".join(parts)


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (value / most if most else 0.0) * (HEIGHT - BOTTOM - TOP)


def _curve(points: Sequence[dict[str, Any]]) -> str:
    """Rows over time. Times far from the others (a row dated 2096) keep their place in the order, not on a scale."""
    if not points:
        return ""
    most = max(point["rows"] for point in points)
    step = (WIDE - LEFT) / max(1, len(points) - 1)
    at = [(LEFT + n * step, _y(point["rows"], most)) for n, point in enumerate(points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    floor = HEIGHT - BOTTOM
    under = f'<polygon class="under" points="{LEFT},{floor} {line} {at[-1][0]:.1f},{floor}"/>'
    ends = [(0, "start"), (len(points) // 2, "middle"), (len(points) - 1, "end")]
    labels = "".join(
        f'<text x="{at[n][0]:.1f}" y="{HEIGHT - 8}" text-anchor="{side}">{_moment(points[n]["at_ms"])}</text>'
        for n, side in ends
        if len(points) > 2 or n != len(points) // 2
    )
    return _svg(_frame(most, _short, WIDE) + under + f'<polyline class="curve" points="{line}"/>' + labels, WIDE)


def _columns(stacks: Sequence[Sequence[float]], names: Sequence[str], shown: Callable[[float], str]) -> str:
    """Upright bars, each of one or more parts from the ground up; of many, the latest."""
    if not stacks:
        return ""
    stacks, names = stacks[-COLUMNS:], names[-COLUMNS:]
    most = max(sum(parts) for parts in stacks) or 1
    step = (NARROW - LEFT) / len(stacks)
    drawn = [_frame(most, shown, NARROW)]
    for n, (parts, name) in enumerate(zip(stacks, names, strict=True)):
        wide, below = min(step * 0.76, 60), 0.0
        x = LEFT + n * step + (step - wide) / 2
        for part, colour in zip(parts, "abc", strict=False):
            top, foot = _y(below + part, most), _y(below, most)
            drawn.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{foot - top:.1f}"/>'
            )
            below += part
        if n % max(1, len(stacks) // 12) == 0:
            drawn.append(f'<text x="{x + wide / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(name)}</text>')
    return _svg("".join(drawn), NARROW)


def _stacks(lines: Sequence[dict[str, Any]]) -> str:
    full = [line for line in lines if line["rows_in"]]
    parts = [(line["out"], line["duplicates"], line["quarantined"]) for line in full]
    return _columns(parts, [str(line["batch"]) for line in full], _short)


def _speed(lines: Sequence[dict[str, Any]]) -> str:
    full = [line for line in lines if line["rows_in"]]
    return _columns([(line["rows_per_s"],) for line in full], [str(line["batch"]) for line in full], _short)


def _attempts(rows: Sequence[dict[str, Any]]) -> str:
    return _columns([(row["rows"],) for row in rows], [str(row["attempts"]) for row in rows], _short)


def _ranking(rows: Sequence[dict[str, Any]], colour: str = "a") -> str:
    """Lying bars, the longest on top, with their names."""
    if not rows:
        return ""
    most, high = max(row["rows"] for row in rows) or 1, 26
    names = max(90, 8 + LETTER * min(LETTERS, max(len(str(row["what"])) for row in rows)))
    drawn = []
    for n, row in enumerate(rows):
        y, wide = n * high + 4, max(1.0, (NARROW - names - 60) * row["rows"] / most)
        what = str(row["what"])
        short = what if len(what) <= LETTERS else what[: LETTERS - 1] + "…"
        drawn.append(
            f'<text class="name" x="{names - 8:.1f}" y="{y + 13}" text-anchor="end">{escape(short)}'
            f"<title>{escape(what)}</title></text>"  # the whole of it, under the pointer
        )
        drawn.append(f'<rect class="{colour}" x="{names:.1f}" y="{y}" width="{wide:.1f}" height="{high - 9}" rx="2"/>')
        drawn.append(f'<text x="{names + wide + 6:.1f}" y="{y + 13}">{row["rows"]:,}</text>')
    return _svg("".join(drawn), NARROW, len(rows) * high + 8)


def _rescues(ms: Sequence[float]) -> str:
    """How many rescues took up to how long: a curve from the quickest to the slowest."""
    if not ms:
        return ""
    most = max(ms) or 1.0
    step = (WIDE - LEFT) / max(1, len(ms) - 1)
    line = " ".join(f"{LEFT + n * step:.1f},{_y(value, most):.1f}" for n, value in enumerate(sorted(ms)))
    ends = f'<text x="{LEFT}" y="{HEIGHT - 8}">quickest</text>'
    ends += f'<text x="{WIDE}" y="{HEIGHT - 8}" text-anchor="end">slowest</text>'
    return _svg(_frame(most, _span, WIDE) + f'<polyline class="curve" points="{line}"/>' + ends, WIDE)


def _rescue_words(rescues: dict[str, Any]) -> str:
    if not rescues["count"]:
        return ""
    shares = ", ".join(f"{name} {_span(rescues[name])}" for name in ("p50", "p95", "p99"))
    return f"From the start that was lost to the start of the next owner: {shares}."


# ── words ────────────────────────────────────────────────────────────────────────────────────────────


def _short(value: float) -> str:
    """1,234 as 1.2k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _span(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return str(ms)
