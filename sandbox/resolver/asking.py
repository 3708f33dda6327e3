"""Name servers asked, in the unprivileged process."""

from __future__ import annotations

from collections.abc import Sequence

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.resolver

from invigilator.sandbox.resolver import FOUND_MAX
from invigilator.sandbox.resolver.upstream import LIFETIME_S, NoSuchName, Server, configure

_KINDS = {4: "A", 6: "AAAA"}


class Upstream:
    """Asks the name servers given, or those of this machine's /etc/resolv.conf."""

    def __init__(self, chosen: Sequence[Server]) -> None:
        dns.asyncbackend.get_default_backend()  # imports what it needs while that can be read
        self._chosen = chosen

    async def look(self, name: str, family: int) -> list[str]:
        """The addresses of a name, aliases followed; empty where it has none of that family. NoSuchName, and
        OSError where no server answers."""
        try:
            found = await self._resolver().resolve(
                name + ".", _KINDS[family], search=False, lifetime=LIFETIME_S, raise_on_no_answer=False
            )
        except dns.resolver.NXDOMAIN as error:
            raise NoSuchName(name) from error
        except (dns.exception.DNSException, ValueError) as error:
            raise OSError(str(error)) from error
        return [] if found.rrset is None else [record.to_text() for record in found.rrset[:FOUND_MAX]]

    def _resolver(self) -> dns.asyncresolver.Resolver:
        asking = dns.asyncresolver.Resolver(configure=not self._chosen)
        if self._chosen:
            configure(asking, self._chosen)
        return asking
