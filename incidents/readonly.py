"""What a query of a user may be: one SELECT over the store's own tables and views, calling known functions.

Two guards stand behind each other. This one takes the text apart by its own lexer (`sqltext`), admits only
what it knows, and *writes the query anew* from the parts, so that the engine cannot read it in another way
than it was judged. The other is the engine's: the session is read-only and its limits cannot be changed
(`engine.limit_settings`). The first is needed because a read-only session of ClickHouse still reads files
through the function `file`, writes them with INTO OUTFILE, and shows `system` tables; the second because no
parser is without mistakes.

Every rule fails closed: what is not understood is refused, and the message says what to write instead.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from invigilator.incidents.engine import DATABASE
from invigilator.incidents.sqltext import NotAllowedError, Token, lex

MAX_LENGTH = 64 << 10
MAX_DEPTH = 100
FUNCTIONS = Path(__file__).parent / "queries" / "functions.txt"
TABLE_FUNCTIONS = frozenset({"numbers", "generate_series", "generateseries", "zeros"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REFUSED_WORDS = {
    "into": "INTO OUTFILE is not allowed: results come back to the caller",
    "outfile": "INTO OUTFILE is not allowed: results come back to the caller",
    "infile": "FROM INFILE is not allowed",
    "format": "FORMAT is not allowed: results come back as a table; ask the caller for JSON",
    "settings": "SETTINGS is not allowed: limits are the server's",
    "identifier": "a parameter of type Identifier is not allowed",
    "columns": "COLUMNS(…) is not allowed: name the columns",
    "apply": "APPLY is not allowed: write the function around each column",
    "insert": "only SELECT is allowed",
    "attach": "only SELECT is allowed",
    "explain": "only SELECT is allowed",
    "describe": "only SELECT is allowed",
    "show": "only SELECT is allowed",
    "execute": "only SELECT is allowed",
    "materialized": "MATERIALIZED is not allowed",
}
_CLAUSE_WORDS = _words(
    "all and any anti array as asc asof between by case cross cube cast date desc descending distinct "
    "else end except exists fill filter final first following for from full global group grouping "
    "having ilike in inner intersect interpolate interval is join last left like limit natural not null "
    "nulls offset on or order outer over partition paste preceding prewhere qualify range recursive "
    "regexp right rlike rollup row rows sample select semi sets step ties then to totals unbounded "
    "union using when where window with within"
)
_BEFORE_PARENTHESIS = _CLAUSE_WORDS - {
    "cast",
    "date",
    "left",
    "right",
    "range",
    "rows",
    "interval",
    "first",
}
_TYPES = _words(
    "array tuple map nullable lowcardinality fixedstring decimal decimal32 decimal64 decimal128 "
    "decimal256 datetime datetime64 enum enum8 enum16 string"
)
_COMBINATORS = re.compile(r"(?:if|array|map|distinct|ornull|ordefault|foreach|resample|argmin|argmax)$")
_ENDS_FROM = _words(
    "where prewhere group order limit having window qualify union intersect except offset select"
)


@functools.cache
def functions() -> frozenset[str]:
    """Lower-case names that may be called."""
    lines = FUNCTIONS.read_text().splitlines()
    return frozenset(line.lower() for line in lines if line and not line.startswith("#")) | TABLE_FUNCTIONS


def admit(sql: str, tables: frozenset[str]) -> str:
    """The query, judged and written anew; NotAllowedError where it is not a SELECT over `tables` alone."""
    if len(sql) > MAX_LENGTH:
        raise NotAllowedError(f"the query is longer than {MAX_LENGTH} characters")
    tokens = lex(sql.strip().rstrip(";").rstrip())
    if not tokens or tokens[0].word not in ("select", "with") or tokens[0].kind != "word":
        raise NotAllowedError(
            "only one SELECT (or WITH … SELECT) is allowed; see docs/tables.md for the tables"
        )
    _check_words(tokens)
    _check_brackets(tokens)
    _check_calls(tokens)
    _check_tables(tokens, tables | _common_tables(tokens))
    return " ".join(token.text for token in tokens)


def _check_words(tokens: list[Token]) -> None:
    for before, token in zip([None, *tokens], tokens, strict=False):
        qualified = before is not None and before.text == "."
        if token.kind == "word" and token.word in _REFUSED_WORDS and not qualified:
            raise NotAllowedError(_REFUSED_WORDS[token.word])


def _check_brackets(tokens: list[Token]) -> None:
    opened: list[str] = []
    for token in tokens:
        if token.kind == "sign" and token.text in "([":
            opened.append(token.text)
            if len(opened) > MAX_DEPTH:
                raise NotAllowedError(f"brackets are nested deeper than {MAX_DEPTH}")
        elif (
            token.kind == "sign"
            and token.text in ")]"
            and (not opened or opened.pop() + token.text not in ("()", "[]"))
        ):
            raise NotAllowedError(f"{token.text} closes nothing: one SELECT, its brackets in pairs")
    if opened:
        raise NotAllowedError(f"{opened[-1]} is never closed")


def _check_calls(tokens: list[Token]) -> None:
    """Every word or name in front of `(` must be a keyword, a type, or an admitted function."""
    for at in range(len(tokens) - 1):
        token = tokens[at]
        if token.kind not in ("word", "name") or tokens[at + 1].text != "(":
            continue
        if at and tokens[at - 1].text == "." and token.kind != "word":
            raise NotAllowedError(f"{token.word} is not a function that may be called")
        if token.kind == "word" and token.word in _BEFORE_PARENTHESIS | _TYPES:
            continue
        if not _callable(token.word):
            raise NotAllowedError(
                f"the function {token.word} is not allowed; see incidents/queries/functions.txt"
            )


def _callable(name: str) -> bool:
    name = name.lower()
    while name not in functions():
        shorter = _COMBINATORS.sub("", name)
        if shorter == name:
            return False
        name = shorter
    return True


def _common_tables(tokens: list[Token]) -> frozenset[str]:
    """Names X of `X AS (SELECT …)`."""
    found = set()
    for at in range(len(tokens) - 3):
        name, as_, opened, select = tokens[at : at + 4]
        if (
            name.kind in ("word", "name")
            and as_.word == "as"
            and opened.text == "("
            and select.word in ("select", "with")
        ):
            found.add(name.text.strip("`"))
    return frozenset(found)


def _check_tables(tokens: list[Token], tables: frozenset[str]) -> None:
    """Whatever follows FROM, JOIN, a comma between tables, or IN must be a subquery or one of `tables`."""
    in_from = [False]
    for at, token in enumerate(tokens):
        if token.kind == "sign":
            if token.text in "([":
                in_from.append(_holds_tables(tokens, at))
            elif token.text in ")]":
                in_from.pop()
            elif token.text == "," and in_from[-1]:
                _check_table(tokens, at + 1, tables)
        if token.kind != "word" or (at and tokens[at - 1].text == "."):
            continue
        if token.word == "from" or (token.word == "join" and not _is_array_join(tokens, at)):
            in_from[-1] = True
            _check_table(tokens, at + 1, tables)
        elif token.word == "join" or token.word in _ENDS_FROM:
            in_from[-1] = False
        elif token.word == "in":
            _check_in(tokens, at + 1, tables)


def _holds_tables(tokens: list[Token], at: int) -> bool:
    """Whether the bracket at `at` follows FROM or JOIN, and holds another: `FROM ((SELECT …), …)`."""
    follows = at > 0 and tokens[at - 1].kind == "word" and tokens[at - 1].word in ("from", "join")
    return follows and tokens[at + 1].text == "("


def _is_array_join(tokens: list[Token], at: int) -> bool:
    return at > 0 and tokens[at - 1].kind == "word" and tokens[at - 1].word == "array"


def _check_table(tokens: list[Token], at: int, tables: frozenset[str]) -> None:
    if at >= len(tokens):
        raise NotAllowedError("a table is missing at the query's end")
    token = tokens[at]
    if token.text == "(":
        if tokens[at + 1].text != "(" and tokens[at + 1].word not in ("select", "with"):
            raise NotAllowedError("parentheses after FROM or JOIN must hold a SELECT")
        return
    if token.kind not in ("word", "name"):
        raise NotAllowedError(f"{token.text} is not a table; see docs/tables.md")
    if at + 1 < len(tokens) and tokens[at + 1].text == "(":
        if token.word.lower() not in TABLE_FUNCTIONS:
            raise NotAllowedError(f"the table function {token.word} is not allowed")
        return
    name = token.text.strip("`")
    if at + 2 < len(tokens) and tokens[at + 1].text == ".":
        if name != DATABASE:
            raise NotAllowedError(f"{name} is not the store's database; see docs/tables.md for its tables")
        at += 2
        name = tokens[at].text.strip("`")
    if (at + 1 < len(tokens) and tokens[at + 1].text == ".") or name not in tables:
        raise NotAllowedError(f"there is no table {name}: see docs/tables.md")


def _check_in(tokens: list[Token], at: int, tables: frozenset[str]) -> None:
    """After IN: a table, a list of values, or a subquery. A bare name in the list could be a table
    (`in(x, system.one)` is the same as `x IN system.one`), so there is none."""
    if at >= len(tokens):
        raise NotAllowedError("a list is missing after IN")
    token = tokens[at]
    if token.kind == "parameter" or token.text == "[":
        return
    if token.text != "(":
        _check_table(tokens, at, tables)
        return
    depth, at = 1, at + 1
    while depth and at < len(tokens):
        token = tokens[at]
        if token.kind == "word" and token.word in ("select", "with"):
            at = _skip_subquery(tokens, at)
            continue
        depth += (token.text in ("(", "[")) - (token.text in (")", "]")) if token.kind == "sign" else 0
        is_call = at + 1 < len(tokens) and tokens[at + 1].text == "("
        if token.kind == "name" or (
            token.kind == "word" and not is_call and token.word not in ("null", "true", "false")
        ):
            raise NotAllowedError(
                f"{token.text} in a list after IN is not allowed: write values or a SELECT there"
            )
        at += 1


def _skip_subquery(tokens: list[Token], at: int) -> int:
    """Position of the bracket that closes the subquery beginning at `at`; its tables are judged elsewhere."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "sign" and token.text in ")]":
            if depth == 0:
                return at
            depth -= 1
        elif token.kind == "sign" and token.text in "([":
            depth += 1
        at += 1
    return at
