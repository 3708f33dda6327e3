"""The OpenAPI document is true: whatever is asked in its words, or beside them, no route fails inside (5xx).

schemathesis draws the requests from the document; the draws are the same at every run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from serving import Service

QUICK, THOROUGH = 4, 150
"""Requests for each operation."""
UNSENDABLE = (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, ValueError, TypeError)
"""What a client refuses to send never reaches the service."""
DEEP = 100_000


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    """A client of this machine's root, whose rate has no limit."""
    with service.client() as made:
        yield made


def document(client: httpx.Client) -> dict[str, Any]:
    """The service's description of itself."""
    answer = client.get("/v1/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def send(client: httpx.Client, case: schemathesis.Case) -> httpx.Response | None:
    """The answer to a drawn request; None where no client can send it."""
    given_ = case.as_transport_kwargs(base_url="http://serve")
    known = ("method", "url", "params", "headers", "json", "content")
    if "data" in given_:
        given_["content"] = given_["data"] if isinstance(given_["data"], str | bytes) else str(given_["data"])
    try:
        return client.request(**{name: given_[name] for name in known if given_.get(name) is not None})
    except UNSENDABLE:
        return None


def explore(client: httpx.Client, modes: list[GenerationMode], examples: int) -> dict[str, int]:
    """How many requests of each operation were answered; AssertionError for the first that failed inside."""
    schema = schemathesis.openapi.from_dict(document(client))
    answered: dict[str, int] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in modes:

            @settings(
                max_examples=examples,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case) -> None:
                answer = send(client, case)
                if answer is not None:
                    check(case, answer)
                    label = case.operation.label
                    answered[label] = answered.get(label, 0) + 1

            # An operation without parameters has nothing that could be wrong.
            with contextlib.suppress(Unsatisfiable):
                ask()
    return answered


def check(case: schemathesis.Case, answer: httpx.Response) -> None:
    """An answer is none of a failure inside, and an error is a problem document."""
    asked = f"{case.method} {answer.request.url} {case.body!r:.500}"
    assert answer.status_code < 500, (asked, answer.text)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", asked
        told = answer.json()
        assert told["status"] == answer.status_code and told["code"] and told["detail"], asked


def test_no_request_that_the_document_allows_fails_inside(client: httpx.Client) -> None:
    answered = explore(client, [GenerationMode.POSITIVE], QUICK)
    assert len(answered) > 10


@pytest.mark.slow
def test_no_request_within_or_beside_the_document_fails_inside(client: httpx.Client) -> None:
    answered = explore(client, [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], THOROUGH)
    assert len(answered) > 10


def test_every_operation_tells_that_its_errors_are_problems(client: httpx.Client) -> None:
    for path, methods in document(client)["paths"].items():
        for method, operation in methods.items():
            told = operation["responses"].get("default", {}).get("content", {})
            assert "application/problem+json" in told, (method, path)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"query": "SELECT 1", "parameters": {"a": ['])
def test_a_body_nested_without_end_is_refused(client: httpx.Client, opening: str) -> None:
    body = (opening * DEEP).encode()
    for path in ("/v1/sql", "/v1/penalties", "/v1/queries/x"):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert json.loads(answer.content)["code"]
