"""TLS: the certificate that `guard serve` shows, and the authorities that clients take as its guarantors."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from invigilator.guard.errors import GuardError

CA_VARIABLE = "INVIGILATOR_CA"
"""A file of PEM certificates; where it is set, no other authority's word counts."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a listener shows its clients: a PEM chain, the server's own certificate first, and its key without
    a password. TLS 1.2 at least. GuardError where they cannot be read, or do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    for path in (certificate, key):
        _readable(path)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        fix = "give a PEM chain, the server's own certificate first, and its key without a password"
        raise GuardError(
            "certificate and key cannot be used", where=f"{certificate}, {key}", fix=fix
        ) from error
    return context


def verification(url: str) -> ssl.SSLContext | bool:
    """What a client verifies the service at `url` by: `$INVIGILATOR_CA` alone, else the usual authorities;
    nothing without TLS."""
    name = os.environ.get(CA_VARIABLE) if url.startswith("https:") else None
    if not name:
        return True
    path = Path(name)
    _readable(path)
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        fix = f"set ${CA_VARIABLE} to a file of PEM certificates"
        raise GuardError("there is no certificate in it", where=name, fix=fix) from error


def _readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise GuardError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _no_password() -> str:
    """Instead of a question on the terminal of a daemon."""
    return ""
