"""The web pages as bytes with their headers; whoever serves them only has to send them.

Pages hold no data: their script asks the API with the reader's own token. What agents wrote reaches the
page as text nodes only, and a strict Content-Security-Policy stands behind that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "static"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing inline, nothing from elsewhere, no frames; and no string ever becomes markup in the browser."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its bytes, media type and all headers, with an entity tag of its content."""

    content: bytes
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)


def load(folder: Path = FOLDER) -> dict[str, Asset]:
    """Every file by its address: `/` is index.html, the others lie under `/static/`."""
    return {_address(path): _asset(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}


def _address(path: Path) -> str:
    return "/" if path.name == "index.html" else f"/static/{path.name}"


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:16]
    return Asset(content, _TYPES[path.suffix], {**HEADERS, "etag": f'"{tag}"'})
