"""GET / and /static/…: the pages. They hold no data, so that they need no token."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from invigilator.dashboards import pages
from invigilator.guard.api.problem import ProblemError

ASSETS = pages.load()
"""Read at import: after the drop of privileges the files may be out of reach."""

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return send(request, "/")


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """What the page consists of."""
    return send(request, f"/static/{name}")


def send(request: Request, address: str) -> Response:
    """An asset, or only the word that it has not changed."""
    asset = ASSETS.get(address)
    if asset is None:
        raise ProblemError(404, "no-such-address", "there is no such page")
    if request.headers.get("if-none-match") == asset.headers["etag"]:
        return Response(status_code=304, headers=asset.headers)
    return Response(asset.content, headers=asset.headers, media_type=asset.media_type)
