"""`docs/tables.md`: the tables and views that researchers write SQL against, from the schema's comments."""

from __future__ import annotations

from invigilator.incidents import migrations, queries
from invigilator.incidents.store import UNREAD_TABLES, Store

_HEAD = """# Tables

What `guard sql "SELECT …"` can read. Generated from the schema (`incidents/schema/`):
`python -m invigilator.incidents.tables > docs/tables.md` writes it anew.

Tables keep every row; start from the views (`…_readable`, `…_current`), which decode numbers and pick the
latest revision. Paths, arguments and names are whatever bytes the agent chose: the tables keep them as they
are, the views show them so that different bytes look different (`\\xHH`, and `\\x5c` for a backslash).
"""


def document(store: Store) -> str:
    """The page, for a store that was migrated."""
    described = store.describe().to_pylist()
    comments = _comments(store)
    tables: dict[str, list[dict[str, str]]] = {}
    for row in described:
        tables.setdefault(row["table"], []).append(row)
    order = sorted(tables, key=lambda name: (name not in comments["views"], name))
    parts = [_HEAD]
    for name in order:
        if name in {"migrations", "activity_feed", *UNREAD_TABLES}:
            continue
        kind = "view" if name in comments["views"] else "table"
        meaning = comments["views"].get(name) or comments["tables"].get(name, "")
        parts.append(f"\n## `{name}` ({kind})\n\n{meaning}\n\n{_columns(tables[name], kind)}")
    parts.append(_queries())
    return "".join(parts)


def _comments(store: Store) -> dict[str, dict[str, str]]:
    found = store.select(
        "SELECT name, comment FROM system.tables WHERE database = currentDatabase()"
    ).to_pylist()
    views = {file.name.removesuffix(".sql"): _head_comment(file.text) for file in migrations.views()}
    return {"tables": {row["name"].decode(): row["comment"].decode() for row in found}, "views": views}


def _head_comment(text: str) -> str:
    return " ".join(line[3:] for line in text.splitlines() if line.startswith("-- "))


def _columns(rows: list[dict[str, str]], kind: str) -> str:
    if kind == "view":
        return "Columns: " + ", ".join(f"`{row['column']}`" for row in rows) + ".\n"
    lines = [f"| `{row['column']}` | `{row['type']}` | {row['meaning']} |" for row in rows]
    return "| column | type | meaning |\n|---|---|---|\n" + "\n".join(lines) + "\n"


def _queries() -> str:
    lines = ["\n# Named queries\n\n| name | answers | parameters |\n|---|---|---|\n"]
    for query in queries.catalogue().values():
        names = ", ".join(f"`{p.name}`" + ("" if p.default is None else "?") for p in query.parameters)
        lines.append(f"| `{query.name}` | {query.summary} | {names} |\n")
    return "".join(lines)


def main() -> None:
    """Write the page to standard output, from a store made for it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        store.migrate()
        print(document(store), end="")
        store.close()


if __name__ == "__main__":
    main()
