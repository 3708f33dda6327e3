"""The page: served without data, nothing from elsewhere, and no way for text to become markup."""

from __future__ import annotations

import re

from serving import Service

from invigilator.dashboards import pages


def test_the_page_and_its_parts_are_served_with_a_strict_policy(service: Service) -> None:
    client = service.client(tcp=True)
    for path in pages.load():
        answer = client.get(path)
        assert answer.status_code == 200
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["trusted-types"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
    assert client.get("/static/../../api/app.py").status_code == 404
    assert client.get("/static/%2e%2e%2fpages.py").status_code == 404


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    for path, asset in pages.load().items():
        text = asset.content.decode()
        addresses = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, path
    page = pages.load()["/"].content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\son\w+=|style=|javascript:", page)


def test_the_script_never_makes_markup_of_text() -> None:
    for path, asset in pages.load().items():
        if path.endswith(".js"):
            text = asset.content.decode()
            for way in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
            ):
                assert way not in text, f"{path} uses {way}"
            assert "localStorage" not in text


def test_the_page_needs_no_token_and_holds_no_data(service: Service) -> None:
    assert service.client(tcp=True).get("/").status_code == 200
    assert service.client(tcp=True).get("/v1/rollouts").status_code == 401


def test_the_api_answers_are_never_cached_or_sniffed(service: Service) -> None:
    answer = service.client().get("/v1/rollouts")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
