"""A query of the program's own may carry tens of thousands of ids, on every engine, whatever they hold."""

from __future__ import annotations

import json

from invigilator.incidents.store import Store

HOSTILE = ["quo'te", "back\\slash", "new\nline", "{x:String}", "ünï", "';--", "\0"]


def test_a_list_of_32000_ids_is_one_parameter(store: Store) -> None:
    ids = [f"rollout-{number}-with-a-name-of-some-length" for number in range(32_000)] + HOSTILE
    found = store.select(
        "SELECT arrayJoin(JSONExtract({ids:String}, 'Array(String)')) AS id, {small:String} AS small",
        {"ids": json.dumps(ids), "small": "it's"},
    )
    assert [value.decode() for value in found["id"].to_pylist()] == ids
    assert set(found["small"].to_pylist()) == {b"it's"}
