"""SQL text in parts, each written anew so that it can be read in one way only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from invigilator.incidents.engine import StoreError


class NotAllowedError(StoreError):
    """The query is refused before the engine sees it; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """A part of the query. `text` is what the engine is sent; `word` the lower-case word, or the name."""

    kind: Literal["word", "name", "string", "number", "sign", "parameter"]
    text: str
    word: str = ""


_LEXER = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | --[^\n]* | /\*(?:[^*]|\*(?!/))*\*/)
  | (?P<parameter>\{[ ]*[A-Za-z_]\w*[ ]*:[ ]*[A-Z][A-Za-z0-9]*(?:\([A-Za-z0-9(), ]*\))?[ ]*\})
  | (?P<number>0[xX][0-9A-Fa-f]+ | (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z_])
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<string>'(?:[^'\\]|\\.|'')*')
  | (?P<name>"(?:[^"\\`]|"")+" | `[^`\\"]+`(?!`))
  | (?P<sign><=>|->|::|\|\||<=|>=|<>|!=|==|/(?!\*)|[-+*%=<>(),.\[\]?:])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def lex(sql: str) -> list[Token]:
    """The parts of a query, without spaces and comments; NotAllowedError where one is not understood."""
    tokens: list[Token] = []
    at = 0
    while at < len(sql):
        found = _LEXER.match(sql, at)
        if found is None:
            raise NotAllowedError(
                f"the query is not understood at {sql[at : at + 20]!r} (character {at + 1}): one statement, "
                "quoted text in '…', odd names in \"…\""
            )
        at = found.end()
        if found.lastgroup != "space":
            tokens.append(_token(found.lastgroup or "", found.group()))
    return tokens


def _token(kind: str, text: str) -> Token:
    if kind == "word":
        return Token("word", text, text.lower())
    if kind == "name":
        name = text[1:-1].replace('""', '"') if text[0] == '"' else text[1:-1]
        if not name.isprintable() or '"' in name or "`" in name:
            raise NotAllowedError(f"the name {name!r} is not allowed: use letters, digits and spaces")
        return Token("name", f"`{name}`", name)
    if kind == "string":
        return Token("string", _string(text[1:-1]))
    if kind == "parameter":
        if re.search(r":\s*Identifier", text, re.IGNORECASE):
            raise NotAllowedError("a parameter of type Identifier is not allowed")
        return Token("parameter", text)
    return Token("number" if kind == "number" else "sign", text)


_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
}


def _string(body: str) -> str:
    """The literal written anew. `\\xHH` stays; an unknown escape keeps its backslash, as in ClickHouse."""
    parts = re.findall(r"\\x[0-9A-Fa-f]{2}|\\.|''|[^\\']", body, re.DOTALL)
    out = []
    for part in parts:
        if part.startswith("\\x"):
            if len(part) != 4:
                raise NotAllowedError("\\x in a text needs two hexadecimal digits")
            out.append(part)
            continue
        if part == "''":
            part = "'"
        elif part[0] == "\\":
            part = _ESCAPES.get(part[1], part)
        out.append(part.replace("\\", "\\\\").replace("'", "\\'"))
    return "'" + "".join(out) + "'"
