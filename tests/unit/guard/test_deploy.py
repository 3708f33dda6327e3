"""The shipped units: systemd takes them, and they say what the daemons are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from invigilator.guard import deploy
from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is missing: no unit was verified (apt-get install systemd)"
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    deploy.write_units(tmp_path, Home(Path("/var/lib/invigilator")))
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong_in_the_units(written: Path) -> None:
    names = [str(written / name) for name in deploy.UNITS]
    done = subprocess.run([str(ANALYZE), "verify", *names], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if any(name in line for name in deploy.UNITS)]
    assert said == []
    wrong = written / "invigilator-serve.service"
    wrong.write_text(wrong.read_text().replace("ProtectSystem=", "ProtektSystem="))
    done = subprocess.run([str(ANALYZE), "verify", wrong], capture_output=True, text=True, timeout=60)
    assert "ProtektSystem" in done.stderr, "it would have said so"


@needs_systemd
def test_the_service_is_hardened_as_systemd_judges_it(written: Path) -> None:
    command = [str(ANALYZE), "security", "--offline=true", str(written / "invigilator-serve.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files: the unit's hardening was not judged")
    [exposure] = re.findall(r"exposure level for invigilator-serve\.service: ([\d.]+)", done.stdout)
    assert float(exposure) < 4.0, done.stdout


def test_units_start_this_installation_on_the_state_folder_that_is_asked_for() -> None:
    for name, text in deploy.units(Home(Path("/srv/a b/50%"))).items():
        daemon = name.removeprefix("invigilator-").removesuffix(".service")
        assert f"\nExecStart={sys.executable} -m invigilator.guard.cli.main {daemon}\n" in text
        assert '\nEnvironment=INVIGILATOR_HOME="/srv/a b/50%%"\n' in text
        assert "@" not in re.sub(r"SystemCallFilter=@system-service", "", text)


@pytest.mark.parametrize("folder", ["/a\nExecStartPre=/bin/evil", '/a"b', "/a\\b", "/a'b", "/a\x1b"])
def test_a_folder_that_no_unit_can_name_is_refused(folder: str) -> None:
    with pytest.raises(GuardError, match="cannot name this path"):
        deploy.units(Home(Path(folder)))


def test_who_may_not_write_there_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match="cannot be written"):
        deploy.write_units(tmp_path / "missing", Home(tmp_path))
