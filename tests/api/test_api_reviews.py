"""Dismissals make revisions of penalties, exactly once, and tell which training steps used another one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from judging import ask, found, judged, policy, ship_rules, versions
from serving import Service, report, ship, ship_report

from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.penalties import Wanted, answer
from invigilator.guard.api.revising import TABLES, Sandbox, catch_up, revise
from invigilator.incidents.records import PolicyRef, PolicyVersions, Report, Review
from invigilator.incidents.rows import policy_rows, report_rows, review_rows
from invigilator.incidents.store import Store
from invigilator.profiles import canonical

RULES = policy()


def decide(service: Service, incident_id: str, decision: str, role: str = "researcher") -> dict[str, Any]:
    client = service.client(service.token(role), tcp=True)
    body = {"decision": decision, "comment": "looked at it"}
    answered = client.post(f"/v1/incidents/{incident_id}/reviews", json=body)
    assert answered.status_code == 201, answered.text
    told: dict[str, Any] = answered.json()
    return told


def test_a_dismissal_makes_a_revision_and_a_confirmation_takes_it_back(
    service: Service, spool_folder: Path
) -> None:
    ship_rules(service, RULES, spool_folder)
    forge, scan = found("reward_forge"), found("service_scan", step_id="call-9")
    ship_report(service, judged("rev-1", RULES, [forge, scan]), spool_folder)
    told = decide(service, forge.id, "dismiss")
    assert (told["before"]["value"], told["after"]["value"], told["after"]["revision"]) == (-2.0, -0.5, 2)
    [now] = ask(service, ["rev-1"])
    assert (now["value"], now["revision"], now["by_step"]) == (-0.5, 2, {"call-9": -0.5})
    shown = service.client().get("/v1/rollouts/rev-1").json()
    assert [one["counted"] for one in shown["incidents"] if one["id"] == forge.id] == [False]
    assert shown["penalty"]["revision"] == 2
    again = decide(service, forge.id, "dismiss")
    assert again["before"] == again["after"], "what is dismissed already changes nothing"
    back = decide(service, forge.id, "confirm")
    assert (back["after"]["value"], back["after"]["revision"]) == (-2.0, 3)
    assert decide(service, forge.id, "comment")["after"] is None
    assert ask(service, ["rev-1"])[0]["revision"] == 3


def test_a_dismissed_flood_of_the_sensor_drops_nothing(service: Service, spool_folder: Path) -> None:
    ship_rules(service, RULES, spool_folder)
    flood = found("sensor_flood")
    ship_report(service, judged("rev-flood", RULES, [flood]), spool_folder)
    assert ask(service, ["rev-flood"])[0]["drop"] is True
    assert decide(service, flood.id, "dismiss")["after"]["drop"] is False
    assert ask(service, ["rev-flood"])[0]["drop"] is False


def test_it_tells_which_training_steps_used_the_old_one(service: Service, spool_folder: Path) -> None:
    version = ship_rules(service, RULES, spool_folder)
    labels = {"train_step": "17", "checkpoint": "c3"}
    forge = found("reward_forge")
    ship_report(service, judged("used-1", RULES, [forge], labels=labels), spool_folder)
    ship_report(service, judged("used-2", RULES, labels=labels), spool_folder)
    trainer = service.client(service.token("trainer"), tcp=True)
    for body in ({}, {}, {"penalty_version": version}):
        answered = trainer.post("/v1/penalties", json={"rollout_ids": ["used-1", "used-2", "no"], **body})
        assert answered.status_code == 200, answered.text
    plain, pinned = decide(service, forge.id, "dismiss")["used"]
    assert (plain["run_id"], plain["train_step"], plain["checkpoint"]) == ("run-1", "17", "c3")
    assert (plain["rollouts"], plain["answers"], plain["rollout_ids"]) == (1, 2, ["used-1"])
    assert (plain["old_value"], plain["new_value"], plain["callers"]) == (-2.0, 0.0, ["a trainer"])
    assert (pinned["penalty_version"], pinned["answers"], pinned["new_value"]) == (version, 1, 0.0)
    listed = trainer.get("/v1/penalties/used", params={"incident_id": forge.id}).json()["used"]
    assert listed == [plain, pinned]
    everywhere = trainer.get("/v1/penalties/used", params={"run_id": "run-1"}).json()["used"]
    assert plain in everywhere
    assert ask(service, ["used-1"])[0]["value"] == 0.0
    assert trainer.get("/v1/penalties/used", params={"incident_id": forge.id}).json()["used"] == listed
    assert decide(service, forge.id, "confirm")["used"][0]["new_value"] == -2.0


def test_a_trainer_learns_nothing_of_what_only_watches(service: Service, spool_folder: Path) -> None:
    ship_rules(service, RULES, spool_folder)
    silent = found("early_exit", monitor_only=True)
    ship_report(service, judged("rev-silent", RULES, [silent]), spool_folder)
    trainer = service.client(service.token("trainer"), tcp=True)
    before = trainer.post("/v1/penalties", json={"rollout_ids": ["rev-silent"]}).json()["penalties"]
    told = decide(service, silent.id, "dismiss")
    assert told["before"] == told["after"]
    after = trainer.post("/v1/penalties", json={"rollout_ids": ["rev-silent"]}).json()["penalties"]
    assert [one | {"as_of": 0} for one in after] == [one | {"as_of": 0} for one in before]
    assert trainer.get("/v1/penalties/used", params={"incident_id": silent.id}).status_code == 404
    assert trainer.post(f"/v1/incidents/{silent.id}/reviews", json={"decision": "dismiss"}).status_code == 403


def test_without_the_policy_the_review_stands_and_says_so(service: Service, spool_folder: Path) -> None:
    forge = found("reward_forge")
    lost = PolicyVersions(confinement="sha256:lost", detection="sha256:lost", penalty="sha256:lost")
    made = report("rev-lost", [forge], policy=PolicyRef(name="lost", versions=lost))
    ship_report(service, made, spool_folder)
    told = decide(service, forge.id, "dismiss")
    assert told["unchanged_because"] == "the policy that judged it is not in the store, or does not read"
    assert told["before"] == told["after"]


def test_a_policy_s_text_that_does_not_read_is_as_if_it_were_not_there(
    service: Service, spool_folder: Path
) -> None:
    forge = found("reward_forge")
    damaged = PolicyVersions(confinement="sha256:dam", detection="sha256:dam", penalty="sha256:dam")
    policy = PolicyRef(name="damaged", versions=damaged)
    ship(service, {"policies": policy_rows(policy, '{"penalty": {"cap": 3}}')}, spool_folder)
    ship_report(service, report("rev-damaged", [forge], policy=policy), spool_folder)
    told = decide(service, forge.id, "dismiss")
    assert told["before"] == told["after"] and "does not read" in told["unchanged_because"]
    body = {"rollout_ids": ["rev-damaged"], "penalty_version": "sha256:dam"}
    assert service.client().post("/v1/penalties", json=body).status_code == 409


class Dying(Outbox):
    """An outbox whose process is killed when it would write the (`lasts` + 1)th table of a revision."""

    lasts = 0

    def spool(self, table: str, rows: Any, segment_id: uuid.UUID | None = None) -> None:
        if segment_id is not None:
            if not self.lasts:
                raise KeyboardInterrupt
            self.lasts -= 1
        super().spool(table, rows, segment_id)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(tmp_path_factory.mktemp("store"))
    opened.migrate()
    yield opened
    opened.close()


def keep(store: Store, folder: Path, made: Report) -> None:
    outbox = Outbox(folder)
    text = canonical.dumps(RULES.model_dump(mode="json")).decode()
    outbox.spool("policies", policy_rows(PolicyRef(name="p", versions=versions(RULES)), text))
    for name, rows in report_rows(made, wall_offset_ns=5).items():
        outbox.spool(name, rows)
    outbox.flush(store)
    outbox.close()


@pytest.mark.parametrize("lasts", range(len(TABLES) + 1))
def test_a_service_killed_between_review_and_revision_goes_on_at_its_next_start(
    store: Store, tmp_path: Path, lasts: int
) -> None:
    forge = found("reward_forge", lasts)
    made = judged(f"killed-{lasts}", RULES, [forge])
    keep(store, tmp_path / "agent", made)
    dying = Dying(tmp_path / "outbox")
    dying.lasts = lasts
    at = datetime.now(UTC)
    dying.put(
        store, "reviews", review_rows([Review(incident_id=forge.id, decision="dismiss", reviewer="a", at=at)])
    )
    box = Sandbox("run-1", made.rollout_id, made.sandbox_id)
    if lasts < len(TABLES):
        with pytest.raises(KeyboardInterrupt):
            revise(store, dying, box)
    else:
        revise(store, dying, box)
    dying.close()
    for _ in range(2):
        outbox = Outbox(tmp_path / "outbox")
        catch_up(store, outbox)
        outbox.close()
    [now] = answer(store, Wanted(rollout_ids=[made.rollout_id]))
    assert (now.value, now.revision) == (0.0, 2)
    for table in TABLES:
        counted = store.select(
            f"SELECT revision, count() AS n FROM {table} WHERE sandbox_id = {{box:UUID}} GROUP BY revision",
            {"box": made.sandbox_id},
        ).to_pylist()
        rows = len(made.coverage) if table == "coverage" else 1
        assert {row["revision"]: row["n"] for row in counted} == {1: rows, 2: rows}, table
    boxes = store.select(
        "SELECT DISTINCT wall_offset_ns, boot_id FROM sandboxes WHERE sandbox_id = {box:UUID}",
        {"box": made.sandbox_id},
    )
    assert boxes.num_rows == 1


def test_what_was_handed_out_is_on_record_once_an_answer(store: Store, tmp_path: Path) -> None:
    """As rows of the service's own: durable before the answer, in the store once."""
    from invigilator.guard.api import deliveries

    made = judged("handed", RULES)
    keep(store, tmp_path / "agent", made)
    outbox = Outbox(tmp_path / "outbox")
    rows = deliveries.rows(answer(store, Wanted(rollout_ids=["handed", "nobody"])), "me", None, None)
    assert rows is not None and rows.num_rows == 1
    outbox.spool("deliveries", rows)
    outbox.close()
    for _ in range(2):
        outbox = Outbox(tmp_path / "outbox")
        catch_up(store, outbox)
        outbox.close()
    [told] = deliveries.handed_out(store, ["handed"])
    assert (told["caller"], told["answers"], told["value"], told["revision"]) == ("me", 1, 0.0, 1)
