"""A `Report` as one self-contained HTML file: no network, no second file, works from `file://`.

Figures, tables and facts are written as HTML here; curves and dialogues travel as JSON and are
drawn by `assets/page.js`. Text of policies and passages is data: it is escaped in the JSON (no `<`
survives, so no `</script>` either) and put on the page as text nodes only.
"""

import base64
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from PIL import Image

from jaxagent.report.records import Cell, Curve, Figure, Report, Table, printed
from jaxagent.types import Images


def write_report(path: Path, report: Report, *, images: Images, image_side: int = 96) -> int:
    """Bytes of the page written to `path`; an image unknown to `images` is shown by its key.

    Args:
        image_side: longest side of an embedded image, in pixels.
    """
    text = page(report, images=images, image_side=image_side)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return len(text.encode())


def page(report: Report, *, images: Images, image_side: int) -> str:
    """The HTML text."""
    keys = sorted(set().union(*(image_keys(row) for row in report.dialogues)))
    data = {
        "curves": [curve_data(curve) for curve in report.curves],
        "dialogues": list(report.dialogues),
        "images": dict(embedded(keys, images=images, side=image_side)),
    }
    parts = {
        "title": html.escape(report.title),
        "summary": f"<p>{html.escape(report.summary)}</p>" if report.summary else "",
        "figures": "".join(map(figure_html, report.figures)),
        "tables": "".join(map(table_html, report.tables)),
        "facts": facts_html(report.facts),
        "css": asset("page.css"),
        "js": asset("charts.js") + asset("page.js"),
        "data": escaped_json(data),
    }
    text = asset("page.html")
    for name, value in parts.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def asset(name: str) -> str:
    return (resources.files("jaxagent.report") / "assets" / name).read_text(encoding="utf-8")


def escaped_json(data: Mapping) -> str:
    """JSON that can stand inside a `<script>` element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def image_keys(dialogue: Mapping) -> set[str]:
    """Keys of every image that a dialogue shows."""
    keys = set(dialogue["images"])
    for turn in dialogue["turns"]:
        keys.update(found["image"] for found in turn.get("candidates", ()))
        keys.update(part["image"] for part in turn.get("parts", ()) if isinstance(part, Mapping))
    return keys


def embedded(keys: Sequence[str], *, images: Images, side: int) -> Iterator[tuple[str, str]]:
    """Pairs of key and data URI; unknown keys are left out."""
    for key in keys:
        try:
            pixels = images(key)
        except KeyError:
            continue
        picture = Image.fromarray(pixels)
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, format="WEBP", quality=82)
        yield key, "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def curve_data(curve: Curve) -> dict:
    """A curve as the page's script reads it; five digits are more than it can show."""
    points = {
        name: [[x, float(f"{y:.5g}")] for x, y in series] for name, series in curve.series.items()
    }
    return {"title": curve.title, "x": curve.x, "note": curve.note, "series": points}


def figure_html(figure: Figure) -> str:
    return (
        f'<div class="figure"><span class="label">{html.escape(figure.label)}</span>'
        f'<span class="value">{html.escape(figure.value)}</span>'
        f'<span class="note">{html.escape(figure.note)}</span></div>'
    )


def table_html(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(map(cell_html, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return (
        f'<figure class="table"><figcaption>{html.escape(table.title)}</figcaption>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"{note}</figure>"
    )


def cell_html(cell: Cell) -> str:
    kind = "" if isinstance(cell, str) else ' class="number"'
    return f"<td{kind}>{html.escape(printed(cell))}</td>"


def facts_html(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in facts.items()
    )
    return f"<dl>{rows}</dl>" if rows else ""
