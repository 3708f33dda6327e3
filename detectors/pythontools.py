"""Programs that Python distributions bring, and how their installers are called."""

from __future__ import annotations

import re

_SCRIPT = re.compile(rb"(?:.*/)?(?:pip[0-9.]*|uv|pipx|poetry|pdm|hatch|conda|mamba)\Z")
_PYTHON = re.compile(rb"(?:.*/)?(?:python|pypy)[0-9.]*\Z")
_MODULES = frozenset((b"pip", b"uv", b"pipx", b"poetry", b"pdm", b"ensurepip"))
_BUILD_SCRIPT = re.compile(rb"(?:.*/)?(?:pyproject-build|hatch|hatchling|flit|setup\.py)\Z")
_INSTALLED = re.compile(rb".*/(?:site|dist)-packages/([^/]+)\.dist-info/[^/]+\Z", re.DOTALL)
_TOOLS = {
    b"pytest": rb"py\.?test",
    b"pip": rb"pip[0-9.]*",
    b"tox": rb"tox",
    b"nox": rb"nox",
    b"nose": rb"nosetests.*|nose",
    b"nose2": rb"nose2.*",
    b"coverage": rb"coverage.*",
    b"uv": rb"uvx?",
    b"poetry": rb"poetry",
    b"cmake": rb"c(?:make|test)",
    b"ninja": rb"ninja",
    b"nodejs-bin": rb"node|npm|npx",
}
"""Distribution → the tools that it brings (entry points on the Python Package Index)."""


def is_pip(argv: bytes) -> bool:
    """Whether a command line (arguments joined by NUL) runs an installer of Python distributions."""
    words = argv.split(b"\0")
    if _SCRIPT.match(words[0]):
        return True
    if not _PYTHON.match(words[0]):
        return False
    rest = iter(words[1:])
    for word in rest:
        if word == b"-m":
            return next(rest, b"") in _MODULES
        if not word.startswith(b"-"):
            return _SCRIPT.match(word) is not None
    return False


def is_builder(argv: bytes) -> bool:
    """Whether a command line runs a tool that builds Python distributions from a project."""
    words = argv.split(b"\0")
    if _BUILD_SCRIPT.match(words[0]):
        return True
    if not _PYTHON.match(words[0]):
        return False
    rest = words[1:]
    module = rest[rest.index(b"-m") + 1 :][:1] if b"-m" in rest else []
    script = next((word for word in rest if not word.startswith(b"-")), b"")
    return (
        module in ([b"build"], [b"flit"], [b"hatchling"], [b"hatch"])
        or _BUILD_SCRIPT.match(script) is not None
    )


def distribution(path: bytes) -> bytes | None:
    """The normalised name (PEP 503) of the distribution whose metadata `path` is; None for other files."""
    found = _INSTALLED.match(path)
    return re.sub(rb"[-_.]+", b"-", found[1].partition(b"-")[0]).lower() if found else None


def brings(distribution_name: bytes, tool: bytes) -> bool:
    """Whether the distribution is the one that a tool of this name comes with."""
    names = _TOOLS.get(distribution_name)
    return names is not None and re.fullmatch(names, tool) is not None
