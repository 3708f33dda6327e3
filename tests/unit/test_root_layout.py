"""Links of a sandbox's own root, and the profile's rules for what they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from invigilator.profiles import library
from invigilator.profiles.apparmor import Layout, compile
from invigilator.profiles.policy import Filesystem, Policy, ProtectedClass
from invigilator.sandbox.layouts import layout
from invigilator.sandbox.root import Lower


def policy(*paths: str) -> Policy:
    denied = ProtectedClass(paths=list(paths), read="deny", write="deny")
    return Policy(name="p", filesystem=Filesystem(protected={"grader": denied}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data/tests").mkdir(parents=True)
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "srv").symlink_to("data")
    (tmp_path / "data/more").symlink_to("/deep/er")
    (tmp_path / "twice").symlink_to("/srv/more")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "out").symlink_to("../../../../etc")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "links"),
    [
        ("/data/tests", {}),
        ("/srv/tests", {b"/srv": b"/data"}),
        ("/srv/more/x", {b"/srv": b"/data", b"/srv/more": b"/deep/er"}),
        ("/twice/x", {b"/twice": b"/deep/er"}),
        ("/out/x", {b"/out": b"/etc"}),
        ("/loop/x", {}),
        ("/missing/x", {}),
    ],
)
def test_links_on_the_way_to_what_a_policy_names_are_found(
    root: Path, path: str, links: dict[bytes, bytes]
) -> None:
    found = dict(layout(policy(path), [Lower("root", "/", (root,))]).aliases)
    assert found == dict(Layout().aliases) | links


def test_layers_above_hide_what_is_below(root: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "srv/tests").mkdir(parents=True)
    assert layout(policy("/srv/tests"), [Lower("root", "/", (above, root))]) == Layout()


def test_a_folder_of_its_own_file_system_has_its_own_links(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "link").symlink_to("/srv")
    lowers = [Lower("root", "/", (root,)), Lower("part", "/data", (other,))]
    found = dict(layout(policy("/data/link/x"), lowers).aliases)
    assert found[b"/data/link"] == b"/data"


def test_the_profile_denies_what_a_link_leads_to(root: Path) -> None:
    asked = policy("/srv/tests")
    own = layout(asked, [Lower("root", "/", (root,))])
    texts = {name: compile(asked, "agent", one).text for name, one in (("own", own), ("usual", Layout()))}
    assert '"/data/tests{,/,/**}"' in texts["own"] and '"/srv/tests{,/,/**}"' in texts["own"]
    assert "/data" not in texts["usual"]


def test_a_root_with_the_usual_links_has_the_usual_profile(tmp_path: Path) -> None:
    for link, leads in Layout().aliases:
        (tmp_path / leads.decode()[1:]).mkdir(parents=True, exist_ok=True)
        (tmp_path / link.decode()[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link.decode()[1:]).symlink_to(leads.decode())
    for name in ("base", "swe-task"):
        asked = library.load(name)
        own = layout(asked, [Lower("root", "/", (tmp_path,))])
        assert compile(asked, "agent", own).name == compile(asked, "agent").name
