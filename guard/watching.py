"""What `guard attach` does: one watch, or one for each container with a label, until their end or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from invigilator.guard.attaching import Attaching
from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home
from invigilator.guard.order import SandboxOrder, attach_order, new_rollout_id
from invigilator.incidents.records import Report
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.containers import Containers, Found

ROLLOUT_LABEL = "invigilator.rollout"
"""A container's label that names its rollout."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Watching:
    """What all watches of one command share. `say` tells a person; `told` is given each report, and why the
    store is behind, if it is."""

    home: Home
    policy: Policy
    rollout: str | None
    run_id: str | None
    attempt: int
    labels: dict[str, str]
    phase: PhaseName | None
    cgroup_parent: str
    say: Callable[[str], None]
    told: Callable[[Report, str | None], None]
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _places: dict[str, str] = field(default_factory=dict)

    async def cgroup(self, path: str) -> None:
        """Watch one cgroup to its end."""
        with self._until_asked():
            order = self._order(self.rollout or new_rollout_id(), self.labels)
            await self._watch(Attaching(order, path, self.home, phase=self.phase))

    async def container(self, name: str) -> None:
        """Watch one container to its end."""
        with self._until_asked():
            one = await asyncio.to_thread(lambda: Containers(self.cgroup_parent).find(name))
            await self._watch_container(one, self.rollout or new_rollout_id())

    async def all_labelled(self) -> None:
        """Watch every container that has the labels, or comes to be, until told to end."""
        wanted = [f"{name}={value}" for name, value in self.labels.items()]
        containers = await asyncio.to_thread(Containers, self.cgroup_parent)
        seen: asyncio.Queue[Found | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(one: Found | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and this thread is about to
                loop.call_soon_threadsafe(seen.put_nowait, one)

        def listen() -> None:
            try:
                for container in containers.events(wanted):
                    if (one := containers.again(container)) is not None:
                        put(one)
                put(GuardError("Docker's daemon has ended", fix="start it, and attach again"))
            except Exception as error:
                put(error)

        with self._until_asked():
            threading.Thread(target=listen, name="events", daemon=True).start()
            for one in await asyncio.to_thread(lambda: Containers(self.cgroup_parent).labelled(wanted)):
                put(one)
            self.say(f"watching containers with {', '.join(wanted)}, until Ctrl-C")
            await self._each(seen)

    async def _each(self, seen: asyncio.Queue[Found | Exception]) -> None:
        tasks: set[asyncio.Task[None]] = set()
        asked = asyncio.create_task(self._asked.wait())
        try:
            while not self._asked.is_set():
                next_one = asyncio.create_task(seen.get())
                await asyncio.wait({next_one, asked}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    next_one.cancel()
                    break
                one = next_one.result()
                if isinstance(one, Exception):
                    raise one
                if self._places.get(one.id) != one.place:
                    self._places[one.id] = one.place
                    task = asyncio.create_task(self._one_of_many(one))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        finally:
            self._asked.set()
            await asyncio.gather(*tasks)
            asked.cancel()

    async def _one_of_many(self, one: Found) -> None:
        rollout = self.rollout or one.labels.get(ROLLOUT_LABEL) or one.id
        try:
            await self._watch_container(one, rollout)
        except GuardError as error:
            self.say(f"container {one.name} is not watched: {error}")
        finally:
            if self._places.get(one.id) == one.place:
                del self._places[one.id]

    async def _watch_container(self, one: Found, rollout: str) -> None:
        labels = {"container": one.name, "image": one.image, **self.labels}
        order = self._order(rollout, labels)
        await self._watch(
            Attaching(order, one.place, self.home, make=one.early, phase=self.phase, container=one.id)
        )

    def _order(self, rollout: str, labels: Mapping[str, str]) -> SandboxOrder:
        return attach_order(
            self.policy,
            rollout_id=rollout,
            run_id=self.run_id,
            attempt=self.attempt,
            labels=dict(labels),
        )

    async def _watch(self, attaching: Attaching) -> None:
        async with attaching as watch:
            since = "its beginning" if watch.whole else "now: who is there already is named in the report"
            self.say(f"rollout {watch.rollout_id}: watching {watch.cgroup} from {since}")
            ended = asyncio.create_task(watch.ended())
            asked = asyncio.create_task(self._asked.wait())
            try:
                await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.result()
                report = await watch.verdict()
            finally:
                asked.cancel()
                ended.cancel()
            self.told(report, watch.notice)

    @contextlib.contextmanager
    def _until_asked(self) -> Iterator[None]:
        """A signal to end asks all watches for their verdicts."""
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self._asked.set)
        try:
            yield
        finally:
            for number in ENDING:
                loop.remove_signal_handler(number)
