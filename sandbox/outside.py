"""A sandbox's way to the outside: its link, the names that it may ask for, and both under another policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import network
from invigilator.sandbox.base import NameEvents, PutNetwork
from invigilator.sandbox.machinery import Machinery
from invigilator.sandbox.naming import Naming


class Outside:
    """One sandbox's. `needs`: what its policy needs of the network; `link`: where it has one."""

    def __init__(
        self,
        shared: Machinery,
        namespace: Callable[[], int],
        number: Callable[[], int],
        name_server: Callable[[], None],
    ) -> None:
        """`namespace`: a descriptor of the sandbox's network namespace, once it is there; `number`: unique
        among live sandboxes. `name_server` tells its programs where to ask for names."""
        self.needs = network.Needs(False, False, ())
        self._shared = shared
        self._namespace, self._number, self._name_server = namespace, number, name_server
        self.link: network.Link | None = None
        self._naming: Naming | None = None
        self._events: NameEvents | None = None
        self._phase: PhaseName | None = None

    @property
    def named(self) -> bool:
        """Whether names are handed out, or refused, by the guard's resolver."""
        return self._naming is not None

    @property
    def known(self) -> Mapping[str, Sequence[str]]:
        """The addresses that names have for the sandbox's life."""
        return {**self.needs.hosts, **(self._naming.known if self._naming else {})}

    def join(self) -> None:
        """Make the link that is needed."""
        if self.needs.link and self.link is None:
            self.link = self._shared.links.make(self._number(), self._namespace(), self.needs)

    def name(self, policy: Policy) -> None:
        """Hand out the names that are needed."""
        if not self.needs.named or self._naming is not None:
            return
        assert self.link is not None
        shared = self._shared
        self._naming = Naming(policy, self.needs, shared.resolver, shared.links, self.link, self._namespace())
        if self._events is not None:
            self._naming.tell(self._events)
        if self._phase is not None:
            self._naming.begin(self._phase)
        self._name_server()

    def tell(self, events: NameEvents) -> None:
        """Tell of names from now on. Until then none is handed out."""
        self._events = events
        if self._naming is not None:
            self._naming.tell(events)

    def begin(self, phase: PhaseName) -> None:
        """A command of a phase starts: its rules for names hold from now on."""
        self._phase = phase
        if self._naming is not None:
            self._naming.begin(phase)

    def change(self, policy: Policy, wanted: network.Needs, put: PutNetwork) -> None:
        """Let other traffic and other names through from now on. `put`: as `Sandbox.change` has it."""
        former, self.needs = self.needs, wanted
        if wanted.link and not former.link:
            self.join()  # the kernel's rules, which let nothing out, still hold
        if self._naming is not None:
            self._naming.change(policy, wanted, put)
            return
        put({})
        if self.link is not None:
            self._shared.links.change(self.link, wanted)
        self.name(policy)

    def close(self) -> None:
        """Answer no more, and remove the link."""
        if self._naming is not None:
            self._naming.close()
        if self.link is not None:
            self._shared.links.remove(self.link)
