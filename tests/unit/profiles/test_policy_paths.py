"""Path classes: any bytes, longest path, the distribution's links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invigilator.profiles import explain, paths, protected
from invigilator.profiles.policy import Access, ClassAccess, Filesystem, PhaseRules, Policy, ProtectedClass
from invigilator.profiles.protected import PathClasses

PART = st.binary(min_size=1, max_size=6).map(lambda b: b.replace(b"/", b"_").replace(b"\0", b"_"))
PATH = st.lists(PART.filter(lambda p: p not in (b".", b"..")), min_size=1, max_size=5).map(
    lambda parts: b"/" + b"/".join(parts)
)


def policy(**classes: list[str]) -> Policy:
    table = {name: ProtectedClass(paths=found, read="deny", write="deny") for name, found in classes.items()}
    return Policy(name="t", filesystem=Filesystem(protected=table))


@given(PATH)
def test_a_path_of_any_bytes_can_be_written_in_a_policy_and_names_itself(path: bytes) -> None:
    assert paths.to_bytes(paths.to_text(path)) == path


@given(PATH)
def test_a_protected_name_of_any_bytes_is_literal(path: bytes) -> None:
    classes = PathClasses(policy(grader=[paths.to_text(path)]))
    assert classes.classify(path) == "grader"
    assert classes.classify(path + b"/below") == "grader"
    assert classes.classify(path + b"x") is None
    assert classes.classify(path[:-1] + bytes([path[-1] ^ 1 or 2])) in (None, "grader")


@pytest.mark.parametrize(
    "name", ["/a*", "/a[b]", "/a{b,c}", "/@{x}", "/^a", "/a b", '/a"b', "/a'b", "/a\nb", "/a?"]
)
def test_characters_that_other_languages_interpret_match_only_themselves(name: str) -> None:
    classes = PathClasses(policy(grader=[name]))
    assert classes.classify(name.encode()) == "grader"
    assert classes.classify(b"/ab") is None
    assert classes.classify(b"/a") is None


@given(st.dictionaries(PATH, st.sampled_from(["test", "grader", "answer"]), min_size=1, max_size=6), PATH)
def test_the_longest_path_wins(table: dict[bytes, str], asked: bytes) -> None:
    table = {paths.canonical(path): name for path, name in table.items()}
    by_class: dict[str, list[str]] = {}
    for path, name in table.items():
        by_class.setdefault(name, []).append(paths.to_text(path))
    classes = PathClasses(policy(**by_class))
    for query in (asked, *table, *(path + asked for path in table)):
        seen = paths.canonical(query)
        holding = [path for path in table if seen == path or seen.startswith(path + b"/")]
        assert classes.classify(query) == (table[max(holding, key=len)] if holding else None)


@pytest.mark.parametrize(
    "alias",
    [
        b"/bin/bash",
        b"/usr/bin/bash",
        b"/proc/self/root/bin/bash",
        b"/proc/1/task/7/root/proc/self/root/usr/bin/bash",
        b"/usr//bin/./bash",
        b"/usr/lib/../bin/bash",
        b"/lib/../usr/bin/bash/",
    ],
)
@pytest.mark.parametrize("written", ["/bin", "/usr/bin"])
def test_every_name_of_a_system_binary_is_of_its_class(alias: bytes, written: str) -> None:
    assert PathClasses(policy(system_binary=[written])).classify(alias) == "system_binary"


def test_a_socket_below_run_is_found_by_its_old_name_too() -> None:
    classes = PathClasses(policy(control_socket=["/run/harness.sock"]))
    assert classes.classify(b"/var/run/harness.sock") == "control_socket"


def test_a_name_that_only_begins_like_a_link_is_no_alias() -> None:
    classes = PathClasses(policy(control_socket=["/runner"], system_binary=["/usr/binary"]))
    assert classes.classify(b"/var/runner") is None
    assert classes.classify(b"/binary") is None


def test_hidden_is_denied_in_every_phase_and_an_inner_class_does_not_leak_out() -> None:
    hidden = Policy(name="t", filesystem=Filesystem(hidden=["/platform"]))
    for phase in ("setup", "agent", "verify"):
        classes = PathClasses(hidden, phase)  # type: ignore[arg-type]
        assert classes.classify(b"/platform/x") == protected.HIDDEN
        assert classes.access(b"/platform/x", "read") == "deny"
    assert PathClasses(hidden).classify(b"/platformer") is None


def test_the_platforms_phases_are_bound_only_by_what_they_say() -> None:
    grader = {"grader": ProtectedClass(paths=["/grader"], read="deny", write="deny")}
    rules = {"verify": PhaseRules(protected={"grader": ClassAccess(read="allow", write="watch")})}
    bound = Policy(name="t", filesystem=Filesystem(protected=grader), phases=rules)  # type: ignore[arg-type]
    found = {
        phase: PathClasses(bound, phase).access(b"/grader", "write") for phase in ("setup", "agent", "verify")
    }  # type: ignore[arg-type]
    assert found == {"setup": "allow", "agent": "deny", "verify": "watch"}


def test_memory_is_bounded_however_many_paths_are_asked_about() -> None:
    classes = PathClasses(policy(grader=["/g"]))
    for number in range(protected.CACHE_MAX + 10):
        classes.classify(b"/g/%d" % number)
    assert len(classes._found) <= protected.CACHE_MAX


@given(
    st.dictionaries(
        PATH, st.tuples(*[st.sampled_from(["allow", "watch", "deny"])] * 2), min_size=1, max_size=4
    ),
    PATH,
    st.sampled_from(["read", "write"]),
)
def test_explain_agrees_with_the_path_classes(
    table: dict[bytes, tuple[Access, Access]], asked: bytes, action: str
) -> None:
    protected_classes = {
        f"c{index}": ProtectedClass(paths=[paths.to_text(path)], read=read, write=write)
        for index, (path, (read, write)) in enumerate(table.items())
    }
    bound = Policy(name="t", filesystem=Filesystem(workspace=[], protected=protected_classes))
    classes = PathClasses(bound)
    said = {"allow": "allowed", "watch": "watched", "deny": "denied"}
    for path in (asked, *table, *(path + asked for path in table)):
        answer = explain.explain(bound, "agent", action, path)  # type: ignore[arg-type]
        assert answer.verdict == said[classes.access(path, action)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["relative", "/a/../b", "/a/./b", "/a\\q", "/a\\x4", "/a\0b", "/" + "a" * 4096]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        paths.to_bytes(text)
