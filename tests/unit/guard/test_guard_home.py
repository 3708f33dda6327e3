"""The state folder: modes, locks, atomic files, deep paths."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from invigilator.guard.home import (
    Home,
    HomeError,
    LockHeldError,
    connect_unix,
    short_address,
    write_atomically,
)


def test_only_serve_may_pass_through_and_nobody_reads(tmp_path):
    home = Home(tmp_path / "home").make()
    names = ("run", "spool", "rollouts", "store")
    modes = {name: (home.root / name).stat().st_mode & 0o777 for name in names}
    assert modes == {"run": 0o711, "spool": 0o700, "rollouts": 0o700, "store": 0o711}


def test_the_node_id_is_generated_once(tmp_path):
    home = Home(tmp_path).make()
    assert home.node_id() == home.node_id() == Home(tmp_path).node_id()


def test_a_lock_ends_with_its_process(tmp_path):
    home = Home(tmp_path).make()
    code = (
        "import sys, time; from pathlib import Path; from invigilator.guard.home import Home\n"
        "with Home(Path(sys.argv[1])).lock('agent', wait=False): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockHeldError), home.lock("agent", wait=False):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with home.lock("agent", wait=False):
        pass


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="INVIGILATOR_HOME"):
        Home(tmp_path / "file" / "home").make()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "report.json"
    write_atomically(target, b"old", 0o644)
    with pytest.raises(TypeError):
        write_atomically(target, "no bytes", 0o644)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_socket_in_a_folder_deeper_than_an_address_is_long_can_be_used(tmp_path):
    deep = tmp_path.joinpath(*["a-rather-long-name"] * 12)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        with short_address(deep / "agent.sock") as address:
            listener.bind(address)
        listener.listen()
        with connect_unix(deep / "agent.sock", socket.SOCK_SEQPACKET) as client:
            client.send(b"hello")
            served, _ = listener.accept()
            with served:
                assert served.recv(16) == b"hello"
