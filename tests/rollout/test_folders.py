"""The folder that a rollout works on is the one that its caller named."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from conftest import Node


@contextlib.contextmanager
def mounted_over(folder: Path) -> Iterator[None]:
    """A tmpfs over the folder."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_workspace_mounted_after_the_agent_began_is_never_mistaken_for_what_lies_under_it(
    own_node: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "underneath").touch()
    own_node.run("--workspace", folder, command=["true"])
    with mounted_over(folder):
        ran = own_node.run("--workspace", folder, command=["sh", "-c", "ls; touch new"])
        if ran.code == 0:  # the host's mounts are shared: the agent sees it too
            assert ran.stdout == b""
            assert (folder / "new").exists()
        else:
            assert ran.code == 125
            assert "sees another folder" in ran.said
            assert "guard down" in ran.said
    assert not (folder / "new").exists()
