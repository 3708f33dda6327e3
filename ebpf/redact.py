"""Credentials in command lines, replaced before anybody else sees them.

Runs once per distinct argument vector. Shapes of keys are those that the issuers document (AWS access key
ids, GitHub and GitLab tokens, OpenAI and Anthropic keys, Slack tokens, Google API keys, JSON Web Tokens).
"""

from __future__ import annotations

import re

REPLACEMENT = b"[redacted]"

_SHAPES = re.compile(
    rb"(?:A(?:KIA|SIA)[0-9A-Z]{16}"
    rb"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}"
    rb"|sk-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
    rb"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^\0]*)"
)
_NAME = (
    rb"[A-Za-z0-9_.-]*(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|token)"
)
_NAMED = re.compile(
    rb"(?P<keep>(?:(?<=\0)|(?<=^)|(?<=[\s'\";&?{,]))"
    rb"(?:-{0,2}" + _NAME + rb"['\"]?\s*(?:=|:\s?)|-{1,2}" + _NAME + rb"\0(?=[^-\0]))['\"]?)"
    rb"(?P<value>[^\s\0'\"&]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    rb"(?P<keep>(?:proxy-)?authorization\s*[:=]\s*(?:(?:bearer|basic|token)\s+)?|bearer\s+)(?P<value>[^\s\0'\"]{6,})",
    re.IGNORECASE,
)
_URL = re.compile(rb"(?P<keep>[a-z][a-z0-9+.-]*://[^/\s\0:@]*:)(?P<value>[^/\s\0@]+)(?=@)", re.IGNORECASE)


def redact(text: bytes) -> bytes:
    """`text` (arguments joined by NUL) with credentials replaced; the same object where there are none."""
    found = _SHAPES.sub(REPLACEMENT, text)
    for pattern in (_HEADER, _NAMED, _URL):
        found = pattern.sub(rb"\g<keep>" + REPLACEMENT, found)
    return text if found == text else found
