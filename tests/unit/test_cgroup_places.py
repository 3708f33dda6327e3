"""Where containers' cgroups are, for both drivers and both versions, and which of them may be watched."""

from __future__ import annotations

import pytest

from invigilator.sandbox import places
from invigilator.sandbox.places import Hierarchy, PlaceError

ID = "4f" * 32
V2 = [Hierarchy("/sys/fs/cgroup", True)]
HYBRID = [
    Hierarchy("/sys/fs/cgroup/memory", False),
    Hierarchy("/sys/fs/cgroup/pids", False),
    Hierarchy("/sys/fs/cgroup/unified", True),
]


@pytest.mark.parametrize(
    ("driver", "parent", "place"),
    [
        ("cgroupfs", "", f"/docker/{ID}"),
        ("cgroupfs", "/jobs/a", f"/jobs/a/{ID}"),
        ("cgroupfs", "/jobs/", f"/jobs/{ID}"),
        ("systemd", "", f"/system.slice/docker-{ID}.scope"),
        ("systemd", "jobs.slice", f"/jobs.slice/docker-{ID}.scope"),
        ("systemd", "jobs-gpu-a.slice", f"/jobs.slice/jobs-gpu.slice/jobs-gpu-a.slice/docker-{ID}.scope"),
        ("systemd", "-.slice", f"/docker-{ID}.scope"),
    ],
)
def test_a_container_s_place_follows_from_driver_and_parent(
    driver: places.Driver, parent: str, place: str
) -> None:
    assert places.docker_place(ID, driver, parent) == place


@pytest.mark.parametrize(
    ("driver", "parent", "words"),
    [
        ("cgroupfs", "jobs", "relative"),
        ("systemd", "/jobs", "no slice"),
        ("systemd", "jobs", "no slice"),
        ("systemd", "a--b.slice", "no slice"),
        ("systemd", "-a.slice", "no slice"),
        ("systemd", ".slice", "no slice"),
    ],
)
def test_a_parent_that_the_driver_cannot_have_is_refused(
    driver: places.Driver, parent: str, words: str
) -> None:
    with pytest.raises(PlaceError, match=words):
        places.docker_place(ID, driver, parent)


@pytest.mark.parametrize(
    ("hierarchies", "path", "place", "folder"),
    [
        (V2, "/docker/x", "/docker/x", "/sys/fs/cgroup/docker/x"),
        (V2, "/sys/fs/cgroup/docker/x/", "/docker/x", "/sys/fs/cgroup/docker/x"),
        (V2, "//docker//x/.", "/docker/x", "/sys/fs/cgroup/docker/x"),
        (V2, "/sys/fs/cgroup", "/", "/sys/fs/cgroup"),
        (V2, "/sys/fs/cgroups/x", "/sys/fs/cgroups/x", "/sys/fs/cgroup/sys/fs/cgroups/x"),
        (HYBRID, "/sys/fs/cgroup/memory/docker/x", "/docker/x", "/sys/fs/cgroup/unified/docker/x"),
        (HYBRID, "/sys/fs/cgroup/unified/docker/x", "/docker/x", "/sys/fs/cgroup/unified/docker/x"),
        (HYBRID, "/docker/x", "/docker/x", "/sys/fs/cgroup/unified/docker/x"),
    ],
)
def test_a_path_in_any_hierarchy_names_the_folder_in_v2(
    hierarchies: list[Hierarchy], path: str, place: str, folder: str
) -> None:
    assert places.place_of(path, hierarchies) == place
    assert places.folder_of(place, hierarchies) == folder


@pytest.mark.parametrize("path", ["docker/x", "", "/docker/../x", "/.."])
def test_a_path_that_may_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(PlaceError):
        places.place_of(path, V2)


def test_without_v2_there_is_no_folder() -> None:
    with pytest.raises(PlaceError, match="no cgroup v2"):
        places.folder_of("/docker/x", HYBRID[:1])


def test_hierarchies_are_read_from_mountinfo() -> None:
    pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    hybrid = (
        "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 30 0:28 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
        "33 30 0:28 /docker/x /mnt/part rw - cgroup cgroup rw,memory\n"
        "34 30 8:1 / / rw - ext4 /dev/sda1 rw\n"
    )
    assert places.hierarchies(pure) == V2
    assert places.hierarchies(hybrid) == [
        Hierarchy("/sys/fs/cgroup/unified", True),
        Hierarchy("/sys/fs/cgroup/memory", False),
    ]


def test_a_process_s_place_is_that_of_v2() -> None:
    hybrid = "9:name=systemd:/init\n4:memory:/docker/x\n0::/docker/y:z\n"
    assert places.place_in(hybrid) == "/docker/y:z"
    assert places.place_in("9:name=systemd:/init\n4:cpu,memory:/docker/x\n") is None


@pytest.mark.parametrize(
    "place",
    [
        f"/docker/{ID}",
        f"/docker/{ID}/below",
        f"/system.slice/docker-{ID}.scope",
        f"/system.slice/docker-{ID}.scope/init.scope",
        "/default/web",
        f"/kubepods/burstable/pod1/{ID}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope",
        f"/machine.slice/libpod-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
    ],
)
def test_usual_containers_may_be_watched(place: str) -> None:
    assert places.is_allowed(place, places.USUAL)


@pytest.mark.parametrize(
    "place",
    [
        "/", "/docker", "/kubepods", "/kubepods.slice", "/system.slice", "/system.slice/sshd.service",
        "/dockers/x", "/x/docker/y", "/system.slice/docker.service", "/user.slice/user-1000.slice",
        "/init.scope", "/invigilator/1-2/0/box",
    ],
)  # fmt: skip
def test_what_is_no_container_may_not(place: str) -> None:
    assert not places.is_allowed(place, places.USUAL)


def test_a_star_stands_for_no_slash() -> None:
    assert places.is_allowed("/jobs-1/x", ["/jobs-*/"])
    assert not places.is_allowed("/jobs-1", ["/jobs-*/"])
    assert not places.is_allowed("/jobs-1/x", ["/jobs-*x"])


def test_a_node_s_own_list_has_comments_and_names_what_is_wrong() -> None:
    assert places.entries("# ours\n/jobs/   # all of them\n\n/one.scope\n") == ["/jobs/", "/one.scope"]
    for text in ("jobs/", "/", "/*", "/jobs/../x"):
        with pytest.raises(PlaceError, match="line 2"):
            places.entries(f"/fine/\n{text}\n")
