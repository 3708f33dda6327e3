"""A sandbox's names: answered by the agent's resolver, on its own loopback, from its start to its removal."""

from __future__ import annotations

from collections.abc import Sequence

from invigilator.profiles.network import IpAddress
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import NameEvents
from invigilator.sandbox.network import Link, Links, Needs
from invigilator.sandbox.resolver.answers import Answers
from invigilator.sandbox.resolver.keeper import Resolver


class Naming:
    """One sandbox's resolver."""

    def __init__(
        self, policy: Policy, wanted: Needs, resolver: Resolver, links: Links, link: Link, namespace: int
    ) -> None:
        """`namespace`: a descriptor of the sandbox's network namespace."""

        def admit(name: str, addresses: Sequence[IpAddress]) -> None:
            links.admit(link, wanted, name, addresses)

        self._answers = Answers(policy, wanted.hosts, admit)
        self._resolver = resolver
        self._number = resolver.serve(namespace, self._answers)

    def tell(self, events: NameEvents) -> None:
        """Tell of names from now on. Until then none is handed out."""
        self._answers.events = events

    def begin(self, phase: PhaseName) -> None:
        """A command of a phase starts: its rules hold from now on."""
        self._answers.phase = phase

    def close(self) -> None:
        """Answer no more."""
        self._resolver.leave(self._number)
