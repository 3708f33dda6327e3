"""Honest work under the library's policies: all of it succeeds, and nothing is refused."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from battery import only, policy_of, refusals
from uml_boxes import Box

from invigilator.sandbox.audit import AuditReader
from invigilator.sandbox.base import SandboxSpec
from invigilator.sandbox.process import ProcessBackend

LIBRARIES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
"""What pytest needs; the sandbox has no site-packages of this checkout."""
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
WORK = {
    "git": "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x >f"
    " && git add f && git commit -qm m && git clone -q . ../c && git -C ../c log --oneline && git gc -q",
    "pip": "python3 -m pip install -q --no-index --root-user-action=ignore --target t *.whl"
    " && PYTHONPATH=t python3 -c 'import tiny; print(tiny.answer)'",
    "pytest": 'printf \'def test_a(tmp_path): (tmp_path / "x").write_text("1")\\n\' >test_x.py'
    " && PYTHONPATH=../lib python3 -m pytest -q test_x.py",
    "gcc": "printf '#include <stdio.h>\\nint main(void){puts(\"hi\");}\\n' >a.c && gcc -o a a.c && ./a",
    "make": "printf 'b: a.c\\n\\tcp a.c b\\n' >Makefile && touch a.c && make -s && test -e b",
    "node": 'node -e \'require("fs").writeFileSync("n", "1"); console.log(1 + 1)\'',
    "tar": "mkdir -p d && echo 1 >d/e && tar czf d.tgz d && rm -r d && tar xzf d.tgz && cat d/e",
    "sqlite": "sqlite3 db 'create table t(a); insert into t values (1); select * from t'",
    "shell": "find / -xdev -name passwd 2>/dev/null | head -3; ls -la /etc /usr >/dev/null; ps ax >/dev/null;"
    " df -h . >/dev/null; mktemp -d; sleep 0.1 & kill $!; wait; echo $((6 * 7))",
    "root": "touch /usr/bin/mine && chmod 755 /usr/bin/mine && chown 1:1 /usr/bin/mine"
    " && python3 -c 'import os; os.setgid(65534); os.setuid(65534); print(os.getuid())'"
    " && mkdir -p /opt/x && ln -s /opt/x /srv/y",
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    for name in LIBRARIES:
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin
        if not found.submodule_search_locations:
            (folder / "lib").mkdir(exist_ok=True)
            shutil.copy(found.origin, folder / "lib")
            continue
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(found.submodule_search_locations[0], folder / "lib" / name, ignore=ignored)
    with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\n")
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr(
            "tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def box(backend: ProcessBackend, workspace: Path) -> Iterator[Box]:
    made = backend.prepare(SandboxSpec(uuid.uuid4(), policy_of("swe-task"), workspace=workspace))
    try:
        made.start()
        yield Box(made)
    finally:
        made.remove()


@pytest.mark.parametrize("work", WORK)
def test_honest_work_succeeds_and_nothing_is_refused(box: Box, work: str) -> None:
    reader = AuditReader()
    try:
        done = box.sh(f"cd $(mktemp -d -p .) && cp ../*.whl . && {WORK[work]}", timeout_s=120)
        told = [one for one in refusals(reader, 1) if one.tier == "apparmor"]
    finally:
        reader.close()
    assert done.code == 0, done.text
    assert not told


def test_of_a_flood_of_refusals_each_is_told_or_counted_as_lost(backend: ProcessBackend) -> None:
    with only(frozenset(["apparmor"])):
        made = backend.prepare(SandboxSpec(uuid.uuid4(), policy_of("swe-task")))
        reader = AuditReader()
        try:
            made.start()
            made.write_file("/grader/tests.py", b"")
            Box(made).sh("for i in {1..2000}; do : </grader/tests.py; done 2>/dev/null")
            told = refusals(reader, 1)
            opened = sum(one.count for one in told if one.name == b"/grader/tests.py")
            assert opened + reader.lost() == 2000
        finally:
            reader.close()
            made.remove()


def test_the_enforced_profile_is_what_the_work_ran_under(box: Box) -> None:
    assert box.sandbox.enforcement()["apparmor"] == "enforce"
    label = box.run("cat", "/proc/self/attr/apparmor/current").text
    assert label.startswith("invigilator-")
    assert label.endswith("(enforce)\n")
