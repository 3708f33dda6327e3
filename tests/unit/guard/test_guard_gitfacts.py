"""The facts of a workspace's git store, on real repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from invigilator.guard.gitfacts import future_commits, future_objects


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "repo")
    for number in range(4):
        made.commit(str(number))
    return made


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self("init", "-q", "-b", "main")

    def __call__(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return done.stdout.strip()

    def commit(self, text: str) -> str:
        (self.folder / "file").write_text(text)
        self("add", "file")
        self("commit", "-qm", text)
        return self("rev-parse", "HEAD")


def test_a_repository_at_its_newest_commit_has_no_future(repository):
    assert future_commits(repository.folder) == []


def test_commits_ahead_of_head_are_told_with_the_refs_that_point_at_them(repository):
    newest, between = repository("rev-parse", "HEAD"), repository("rev-parse", "HEAD~1")
    repository("tag", "-a", "v3", "-m", "x")
    repository("branch", "future")
    repository("reset", "-q", "--hard", "HEAD~2")
    found = future_commits(repository.folder)
    assert {one.commit: one.refs for one in found} == {
        newest: (b"refs/heads/future", b"refs/tags/v3"),
        between: (),
    }


def test_trees_and_blobs_that_only_the_future_holds_are_told(repository):
    tree, blob = repository("rev-parse", "HEAD^{tree}"), repository("rev-parse", "HEAD:file")
    repository("branch", "future")
    repository("reset", "-q", "--hard", "HEAD~1")
    (found,) = future_objects(repository.folder, future_commits(repository.folder))
    assert (found.repository, set(found.ids)) == (b".", {tree, blob})


def test_a_commit_that_no_ref_reaches_is_told(repository):
    newest = repository("rev-parse", "HEAD")
    repository("reset", "-q", "--hard", "HEAD~1")
    repository("reflog", "expire", "--expire=now", "--all")
    assert [one.commit for one in future_commits(repository.folder)] == [newest]


def test_a_packed_future_is_told(repository):
    newest = repository("rev-parse", "HEAD")
    repository("branch", "future")
    repository("reset", "-q", "--hard", "HEAD~1")
    repository("gc", "-q")
    assert [one.commit for one in future_commits(repository.folder)] == [newest]


def test_a_repository_below_the_workspace_is_found(repository):
    repository("reset", "-q", "--hard", "HEAD~1")
    assert {one.repository for one in future_commits(repository.folder.parent)} == {b"repo"}


def test_a_folder_without_git_has_none(tmp_path):
    assert future_commits(tmp_path) == []


def test_nothing_that_the_repository_configures_is_run(repository, tmp_path):
    """fsmonitor, hooks, pager, ssh command, aliases and a promisor's fetch would all start programs."""
    witness = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {witness}\n")
    program.chmod(0o755)
    repository("reset", "-q", "--hard", "HEAD~1")
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "core.askPass", "credential.helper"):
        repository("config", key, str(program))
    repository("config", "remote.origin.url", f"ext::{program}")
    repository("config", "remote.origin.promisor", "true")
    repository("config", "extensions.partialClone", "origin")
    repository("config", "uploadpack.packObjectsHook", str(program))
    hooks = repository.folder / ".git" / "hooks"
    for name in ("post-checkout", "pre-auto-gc", "reference-transaction"):
        (hooks / name).write_text(program.read_text())
        (hooks / name).chmod(0o755)
    missing = repository("rev-parse", "HEAD~1^{tree}")
    (repository.folder / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    assert len(future_commits(repository.folder)) == 1
    assert not witness.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: reads a repository of another user")
def test_git_reads_another_users_repository_as_that_user(repository):
    repository("reset", "-q", "--hard", "HEAD~1")
    for path in (repository.folder, *repository.folder.rglob("*")):
        os.lchown(path, 61234, 61234)
    (repository.folder / ".git").chmod(0o700)
    assert len(future_commits(repository.folder)) == 1
