"""A proof of a policy with a wildcard: names below it are asked for again, and strangers' are refused."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from test_names import HOST, UPSTREAM, ZONE

from invigilator.sandbox.resolver.upstream import VARIABLE

REACH = """
import socket
for name in ("stay.zone.example", "moves.zone.example"):
    print(socket.create_connection((name, 8080), 20).recv(99).decode())
"""


@pytest.mark.slow
def test_names_below_a_wildcard_are_reached_again_and_strangers_are_refused(own_node, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "upstream.py").write_text(UPSTREAM)
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\nname: names\nextends: swe-task\nnetwork:\n  default_action: deny\n  egress:\n{ZONE}"
    )
    recorded = own_node.command("run", "-p", policy, "--rollout", "named", "--", "python3", "-c", REACH)
    proof = ("prove", policy, "--from", "named", "--without", "apparmor", "--json")
    both = "\n".join(shlex.join(map(str, words)) for words in (recorded, own_node.command("policy", *proof)))
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", HOST, "host", "bash", "-ec", both],
        env=own_node.environment({"FOLDER": str(tmp_path), VARIABLE: "127.0.0.1:5399"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    told = done.stdout.decode()
    assert done.returncode == 0, (told, done.stderr.decode(errors="replace"))
    assert told.startswith("198.51.100.2\n198.51.100.1\n")
    rows = {row["what"]: row for row in json.loads(told.partition("{")[1] + told.partition("{")[2])["rows"]}
    assert not [what for what, row in rows.items() if row["state"] == "failed"]
    # Where the second name leads is its owner's to say, and by now it is elsewhere.
    [row] = [row for what, row in rows.items() if "recorded connections" in what]
    assert row["state"] == "not shown" and row["found"].startswith("1 no longer where a name leads"), row
    assert rows["named: no connection is refused that was not"]["state"] == "proven"
    for what in ("ask attack.invalid", "ask attack-zone.example"):
        assert [row["state"] for name, row in rows.items() if name.startswith(f"attack {what}:")] == [
            "proven"
        ]
