"""A sandbox's names: answered by the agent's resolver, on its own loopback, from its start to its removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invigilator.profiles.network import IpAddress
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import NameEvents, PutNetwork
from invigilator.sandbox.network import Link, Links, Needs
from invigilator.sandbox.resolver.answers import Answers
from invigilator.sandbox.resolver.keeper import Resolver


class Naming:
    """One sandbox's resolver."""

    def __init__(
        self, policy: Policy, wanted: Needs, resolver: Resolver, links: Links, link: Link, namespace: int
    ) -> None:
        """`namespace`: a descriptor of the sandbox's network namespace."""

        self._wanted, self._links, self._link = wanted, links, link
        self._answers = Answers(policy, wanted.hosts, self._admit)
        self._resolver = resolver
        self._number = resolver.serve(namespace, self._answers)

    def tell(self, events: NameEvents) -> None:
        """Tell of names from now on. Until then none is handed out."""
        self._answers.events = events

    def begin(self, phase: PhaseName) -> None:
        """A command of a phase starts: its rules hold from now on."""
        self._answers.phase = phase

    @property
    def known(self) -> Mapping[str, Sequence[str]]:
        """The addresses that names have for the sandbox's life."""
        with self._resolver.holding(self._number):
            return self._answers.known

    def change(self, policy: Policy, wanted: Needs, put: PutNetwork) -> None:
        """Another policy's names. A question that comes meanwhile waits for the new rules."""
        with self._resolver.holding(self._number):
            kept = self._answers.change(policy, wanted.hosts)
            put(kept.pins)
            self._wanted = wanted
            self._links.change(self._link, wanted, kept.names)

    def close(self) -> None:
        """Answer no more."""
        self._resolver.leave(self._number)

    def _admit(self, name: str, addresses: Sequence[IpAddress]) -> None:
        self._links.admit(self._link, self._wanted, name, addresses)
