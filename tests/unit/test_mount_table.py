"""The mount table as the kernel writes it, with what a name may hold."""

from __future__ import annotations

from invigilator.sandbox.mounts import parse

TABLE = (
    b"21 1 0:20 / /proc rw,nosuid - proc proc rw\n"
    b"22 1 8:1 /lower /a\\040b\\012c\\134d\\011e rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    b"23 22 259:1048575 / /r\rf\x0cv\x0b\xff\xe2\x80\xa8 rw - tmpfs tmpfs rw\n"
)


def test_every_line_is_a_mount_whatever_its_name_holds() -> None:
    found = {mount.mount_point: (mount.dev, mount.fs_root) for mount in parse(TABLE)}
    assert found == {
        b"/proc": (20, b"/"),
        b"/a b\nc\\d\te": (8 << 20 | 1, b"/lower"),
        b"/r\rf\x0cv\x0b\xff\xe2\x80\xa8": (259 << 20 | 1048575, b"/"),
    }


def test_the_longest_mount_point_is_first() -> None:
    lengths = [len(mount.mount_point) for mount in parse(TABLE)]
    assert lengths == sorted(lengths, reverse=True)
