"""docs/proof.md says what the kernel did."""

from __future__ import annotations

import document
import pytest
import remote

PROOF = remote.boot.CHECKOUT / "docs/proof.md"


@pytest.mark.slow
def test_the_document_is_what_the_proof_found(request: pytest.FixtureRequest) -> None:
    """Writes the document anew; fails where that changes it, so that a change is looked at and kept."""
    guest = remote.guest(request.session, "uml")
    if guest.skip:
        pytest.skip(guest.skip)
    assert guest.out is not None
    found = guest.out / "results"
    results = document.read(found.read_text().splitlines() if found.exists() else ())
    if left := document.missing(results):
        pytest.skip(f"only a part of the proof was asked for; without {left[0]} and {len(left) - 1} more")
    text = document.text(results)
    print(text)
    before = PROOF.read_text() if PROOF.exists() else ""
    PROOF.write_text(text)
    assert text == before, "docs/proof.md was out of date, and is written anew: look at the difference"
