"""A report's table as text: for the terminal, and as Markdown for the README."""

from jaxagent.report.records import Table, printed


def text_table(table: Table) -> str:
    """The title, then aligned columns."""
    cells = [list(table.columns), *(list(map(printed, row)) for row in table.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(table.columns))]
    right = [any(not isinstance(row[at], str) for row in table.rows) for at in range(len(widths))]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([table.title, *lines]) + "\n"


def markdown_table(table: Table) -> str:
    """A pipe table, with the note under it."""
    numeric = [
        bool(table.rows) and any(not isinstance(row[at], str) for row in table.rows)
        for at in range(len(table.columns))
    ]
    rule = ["---:" if right else "---" for right in numeric]
    rows = [list(table.columns), rule, *(list(map(printed, row)) for row in table.rows)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{table.note}\n" if table.note else f"{text}\n"
