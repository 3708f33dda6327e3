"""Another policy for a rollout that runs: what its processes meet, and what the report and the record say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from conftest import TIMEOUT_S, wait_until
from test_egress import HOST, SERVICES

POLICY = """version: 1
name: {name}
extends: swe-task
limits: {{pids: {pids}}}
network:
  default_action: deny
  egress: [{{name: one, target: 198.51.100.{host}, ports: [8080]}}]
phases: {{setup: {{network: {{default_action: deny, egress: []}}}}}}
"""
ASK = """
import os, socket, time
def ask(host):
    try:
        with socket.socket() as s:
            s.settimeout(20)
            s.connect((host, 8080))
            return s.recv(9).decode()
    except OSError as error:
        return type(error).__name__
def both():
    return ask("198.51.100.1"), ask("198.51.100.2")
print(*both(), flush=True)
open("/workspace/asked", "w").close()
while not os.path.exists("/workspace/go"):
    time.sleep(0.02)
print(*both(), flush=True)
"""
DRIVER = """
import json, subprocess, sys, threading, time
from invigilator import SyncSandbox
from invigilator.profiles import library
before, after, ask, *apply = sys.argv[1:]
found = {}
with SyncSandbox.create(policy=library.load(before), rollout_id="applied") as box:
    box.phase("agent")
    asking = threading.Thread(target=lambda: found.update(asked=box.exec(["python3", "-c", ask]).stdout))
    asking.start()
    while box.exec("test -e /workspace/asked").exit_code:
        time.sleep(0.02)
    done = subprocess.run([*apply, after, "--rollout", "applied", "--json"], capture_output=True, text=True)
    found["applied"], found["error"] = done.stdout, done.stderr
    box.write_file("/workspace/go", b"")
    asking.join()
    found["report"] = box.verdict().model_dump(mode="json")
print(json.dumps(found))
"""


def test_a_running_process_meets_the_new_rules_and_the_report_says_since_when(
    own_node, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "services.py").write_text(SERVICES)
    for name, host, pids in (("before", 1, 256), ("after", 2, 128)):
        (tmp_path / f"{name}.yaml").write_text(POLICY.format(name=name, host=host, pids=pids))
    python, *guard = own_node.command("policy", "apply")
    words = [python, "-c", DRIVER, tmp_path / "before.yaml", tmp_path / "after.yaml", ASK, python, *guard]
    command = ["unshare", "--net", "--mount", "bash", "-c", HOST, "host", *words]
    environment = own_node.environment({"FOLDER": str(tmp_path)})
    done = subprocess.run(command, env=environment, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["asked"] == "served PermissionError\nPermissionError served\n", found
    applied = json.loads(found["applied"])["change"]
    unchanged = {"mount": "unchanged", "seccomp": "unchanged"}
    assert applied["tiers"].items() >= {"cgroup": "changed", "network": "changed", **unchanged}.items()
    report = found["report"]
    assert report["policy"]["name"] == "before"
    assert [one["name"] for one in report["policy_changes"]] == ["after"]
    assert (report["coverage"]["network"], report["status"]) == ("ok", "final")
    # Two connects (each an event of its own, and the kernel's refusal), one under each policy, which is what
    # each is judged by; a replay judges as was judged live.
    (refused,) = report["incidents"]
    assert (refused["kind"], refused["outcome"], refused["count"]) == ("egress_violation", "denied", 4)
    audited = ("audit", "--action", "policy.apply", "--json")
    wait_until(lambda: json.loads(own_node.guard(*audited).stdout), TIMEOUT_S)
    [told] = json.loads(own_node.guard(*audited).stdout)
    assert told["subject"] == report["sandbox_id"]
    assert ["before" in told["before"], "after" in told["after"]] == [True, True]
    replayed = json.loads(own_node.guard("replay", "applied", "--json").stdout)
    assert replayed["same"] and replayed["incidents"] == report["incidents"]
    kept = "(SELECT max(text) FROM policies WHERE name = 'after') AS kept"
    query = (
        f"SELECT text, path2, a0, {kept} FROM events_readable "
        "WHERE rollout_id = 'applied' AND kind = 'policy' ORDER BY seq"
    )
    rows = json.loads(own_node.guard("sql", "--json", query).stdout)
    assert [(one["text"], int(one["a0"])) for one in rows] == [(applied["confinement"], n) for n in (1, 0)]
    assert "network changed" in rows[1]["path2"]
    assert json.loads(rows[0]["kept"])["limits"]["pids"] == 128


def test_what_cannot_change_is_refused_and_changes_nothing(node, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(
        "version: 1\nname: other\nextends: swe-task\nfilesystem: {hidden: [/x]}\n"
    )
    driver = DRIVER.replace('"applied"', '"refused"').replace(
        'while box.exec("test -e /workspace/asked").exit_code:', "while False:"
    )
    python, *guard = node.command("policy", "apply")
    words = [python, "-c", driver, "swe-task", tmp_path / "other.yaml", "0", python, *guard]
    done = subprocess.run(words, env=node.environment(), capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "filesystem.hidden decides the verdict too" in found["error"]
    assert found["report"]["policy_changes"] == []
    nobody = node.guard("policy", "apply", "base", "--rollout", "no-such-rollout")
    assert nobody.returncode != 0 and b"no rollout 'no-such-rollout'" in nobody.stderr
