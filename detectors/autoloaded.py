"""Names of files that programs load without being asked to."""

from __future__ import annotations

import enum
import re


class Sort(enum.IntEnum):
    """What loads a file of such a name by itself."""

    NONE = 0
    SITE = 1
    """Every start of Python: sitecustomize and usercustomize (site in Python's library reference)."""
    PATH_FILE = 2
    """Every start of Python: *.pth, by which honest work names a folder."""
    SHELL = 3
    """Login shells, interactive ones, all of zsh's (bash(1), dash(1), zsh(1))."""
    LOADER = 4
    """Every start of a program: /etc/ld.so.preload (ld.so(8))."""
    TESTS = 5
    """pytest: conftest.py, pytest.ini."""
    RUNNER = 6
    """A module of a test runner's name, which `python -m` prefers to the runner."""
    MODULE = 7
    """A module in a folder of installed ones: loaded where others name it."""
    PART = 8
    """A module of a test runner that is installed."""
    NAMES = 9
    """Look-ups of users and hosts, by libraries that nsswitch.conf names (nsswitch.conf(5))."""
    CRYPTO = 10
    """OpenSSL, with libraries that openssl.cnf names (config(5ssl))."""


_MODULES = {
    **dict.fromkeys((b"sitecustomize", b"usercustomize"), Sort.SITE),
    **dict.fromkeys(
        (b"pytest", b"_pytest", b"unittest", b"pluggy", b"coverage", b"nose", b"nose2"), Sort.RUNNER
    ),
    b"conftest": Sort.TESTS,
}
_OTHERS = {b"pytest.ini": Sort.TESTS, b".pytest.ini": Sort.TESTS}
_HOME = re.compile(rb"/root\Z|/home/[^/]+\Z")
_OF_HOME = frozenset(
    b"." + name
    for name in (
        b"bashrc", b"profile", b"bash_profile", b"bash_login", b"bash_env", b"zshenv", b"zshrc", b"zprofile",
    )
)  # fmt: skip
_OF_SYSTEM = frozenset((b"/etc/profile", b"/etc/bash.bashrc", b"/etc/environment"))
_PACKAGES = (b"/site-packages", b"/dist-packages")
_INSTALLED = re.compile(
    rb"/(?:(?:site|dist)-packages|python3\.\d+)/(?:_?pytest|pluggy|unittest|nose2?|coverage)(?:/.*)?\.py\Z",
    re.DOTALL,
)
_CACHE = re.compile(rb"(.*)/__pycache__/([^/.]+)\.[^/]*pyc\Z", re.DOTALL)
_CONFIGURATION = {
    b"/etc/nsswitch.conf": Sort.NAMES,
    b"/etc/ssl/openssl.cnf": Sort.CRYPTO,
    b"/usr/lib/ssl/openssl.cnf": Sort.CRYPTO,
}


def sort_of(path: bytes) -> Sort:
    """What loads the file of an absolute path by itself."""
    folder, _, name = path.rpartition(b"/")
    if path == b"/etc/ld.so.preload":
        return Sort.LOADER
    if name.endswith(b".py"):
        return _sort_of_module(folder, name)
    if name.endswith(b".pth") and folder.endswith(_PACKAGES):
        return Sort.PATH_FILE
    if name in _OF_HOME and _HOME.match(folder):
        return Sort.SHELL
    if path in _OF_SYSTEM or folder in (b"/etc/profile.d", b"/etc/zsh"):
        return Sort.SHELL
    return _CONFIGURATION.get(path) or _OTHERS.get(name, Sort.NONE)


def source_of(path: bytes) -> bytes:
    """The source file that a cache of Python's is read instead of; any other path as it is."""
    found = _CACHE.match(path)
    return b"%s/%s.py" % found.groups() if found else path


def is_installed(path: bytes) -> bool:
    """Whether a source file is an installed test runner's."""
    return _INSTALLED.search(path) is not None


def module_of(path: bytes) -> tuple[bytes, bytes]:
    """(folder, name) of the module that a source file is."""
    folder, _, name = path.removesuffix(b"/__init__.py").removesuffix(b".py").rpartition(b"/")
    return folder, name


def _sort_of_module(folder: bytes, file: bytes) -> Sort:
    place, module = module_of(folder + b"/" + file)
    if found := _MODULES.get(module):
        return found
    if is_installed(folder + b"/" + file):
        return Sort.PART
    return Sort.MODULE if place.endswith(_PACKAGES) else Sort.NONE
