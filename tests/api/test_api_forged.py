"""Rows that the service makes itself come from no node: it could review its own incidents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from serving import Service

from invigilator.incidents.records import Review
from invigilator.incidents.rows import review_rows
from invigilator.incidents.spool import Spool


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("role", ["node", "admin"])
def test_a_review_in_a_segment_is_refused(
    service: Service, spool_folder: Path, role: str, together: bool
) -> None:
    forged = Review(
        incident_id="i-1", decision="dismiss", reviewer="somebody", comment="", at=datetime.now(UTC)
    )
    spool = Spool(spool_folder)
    segment = spool.append("reviews", review_rows([forged]), None)
    content = segment.read_bytes()
    spool.close()
    client = service.client(service.token(role), tcp=True)
    if together:
        body = segment.header().encode() + b"\n" + content
        answer = client.post("/v1/segments/together", content=body)
    else:
        answer = client.post("/v1/segments", content=content, headers={"X-Segment": segment.header()})
    assert answer.status_code == 422
    assert "service alone" in answer.json()["detail"]
