"""Canaries differ from rollout to rollout, and any useful part of one betrays a copy."""

from __future__ import annotations

from invigilator.guard import canary
from invigilator.profiles.policy import CanarySpec

SPECS = [CanarySpec(under="/grader/"), CanarySpec(under="/root/.aws", channel="credential")]


def test_no_two_draws_share_a_path_or_a_content():
    drawn = [one for _ in range(100) for one in canary.draw(SPECS)]
    assert len({one.content for one in drawn}) == len(drawn)
    assert len({one.path for one in drawn}) > len(drawn) * 0.9


def test_canaries_lie_below_their_folder_and_tell_their_digest():
    answer, credential = canary.draw(SPECS)
    assert answer.path.startswith("/grader/") and "//" not in answer.path
    assert credential.path.startswith("/root/.aws/")
    assert len(answer.digest) == 64


def test_each_marker_alone_gives_a_copy_away():
    for one in canary.draw(SPECS * 20):
        assert one.markers
        for marker in one.markers:
            assert marker in one.content
            assert canary.matches([one], b"def solve():\n    return '" + marker + b"'\n") == [one]


def test_an_innocent_file_matches_nothing():
    drawn = canary.draw(SPECS * 20)
    honest = b'[\n  {\n    "case": "case_00",\n    "expected": "42"\n  }\n]\nq1: 7\n[default]\n'
    assert canary.matches(drawn, honest) == []
