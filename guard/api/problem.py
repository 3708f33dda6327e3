"""Errors as `application/problem+json` (RFC 9457): what is wrong, and what to do, for people and programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

TYPE_PREFIX = "tag:invigilator,2026:"
_KNOWN = {
    404: ("no-such-address", "there is nothing at this address"),
    405: ("method-not-allowed", "this address takes no such method"),
}
_log = logging.getLogger("invigilator.serve")


class Problem(BaseModel):
    """What is wrong. `code` is stable, `detail` says it for people, `fix` what to do."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    fix: str = ""


DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What is wrong, and what to do",
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
}
"""What the OpenAPI document says of every operation's errors."""


class ProblemError(HTTPException):
    """An answer that is an error. `code` is stable; with `retry_after_s` it asks to come back."""

    def __init__(
        self, status: int, code: str, detail: str, *, fix: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.fix = fix
        self.retry_after_s = retry_after_s

    def response(self) -> Response:
        """The HTTP answer."""
        body: dict[str, Any] = {
            "type": TYPE_PREFIX + self.code,
            "title": self.code.replace("-", " "),
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.fix:
            body["fix"] = self.fix
        headers = {"cache-control": "no-store"}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(json.dumps(body), self.status, headers, "application/problem+json")


def ambiguous_rollout(rollout_id: str, runs: Sequence[str]) -> ProblemError:
    """409: several runs have a rollout of this id, and it was not said which is meant."""
    detail = f"rollout {rollout_id!r} is in {len(runs)} runs: {', '.join(map(repr, runs[:5]))}"
    return ProblemError(409, "ambiguous-rollout", detail, fix="say which run with run_id")


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem; one that nobody foresaw is logged and tells nothing inner."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.response()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return ProblemError(422, "invalid-request", f"{place}: {first['msg']}").response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, detail = _KNOWN.get(error.status_code, ("refused", error.detail))
    return ProblemError(error.status_code, code, detail).response()


async def _unforeseen(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ProblemError(500, "internal-error", "guard serve failed; its log says why").response()
