"""A client that watches a cgroup of others' from its beginning, or from now on, to its end.

async with Attaching(order, "/docker/4f…", Home.locate()) as watch:
    await watch.ended()
    report = await watch.verdict()
"""

from __future__ import annotations

from invigilator.guard.entered import Entered
from invigilator.guard.home import Home
from invigilator.guard.order import SandboxOrder
from invigilator.profiles.policy import PhaseName


class Attaching(Entered):
    """One watch, entered with `async with`. `make`: the cgroup is about to be made (a container that was
    created and has not started), and may be there before its runtime makes it. `container`: its id at
    Docker's, where it has one."""

    def __init__(
        self,
        order: SandboxOrder,
        cgroup: str,
        home: Home,
        *,
        make: bool = False,
        phase: PhaseName | None = None,
        container: str = "",
    ) -> None:
        asked = {
            "order": order.model_dump(mode="json"),
            "cgroup": cgroup,
            "make": make,
            "phase": phase,
            "container": container,
        }
        super().__init__(home, "attach", asked)

    @property
    def rollout_id(self) -> str:
        """The rollout's id."""
        return str(self._opened["rollout_id"])

    @property
    def cgroup(self) -> str:
        """The cgroup's path from its hierarchy's root."""
        return str(self._opened["cgroup"])

    @property
    def whole(self) -> bool:
        """Whether nobody was in it when the watch began."""
        return bool(self._opened["whole"])

    async def ended(self) -> str:
        """Wait for the end: `empty`, `removed`, or `asked` where the verdict was asked for."""
        return str((await self._link.ask("await_end"))["ended"])
