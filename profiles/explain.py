"""Which rule decides: "may it write /bin/bash in phase agent, and who says so?"."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from invigilator.profiles import access as access_rules
from invigilator.profiles import binds, capabilities, network, seccomp
from invigilator.profiles.access import SIDES
from invigilator.profiles.apparmor import calls as raw_calls
from invigilator.profiles.apparmor import raw, sockets
from invigilator.profiles.endpoints import address_of, egress_decides, endpoint, is_own_loopback
from invigilator.profiles.errors import Place
from invigilator.profiles.library import Loaded
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import Access, CallRule, FileAccess, PhaseName, Policy, Syscalls
from invigilator.profiles.protected import HIDDEN, PathClasses
from invigilator.profiles.source import Loc

Action = FileAccess | Literal["connect", "bind", "syscall", "capability"]
ACTIONS: tuple[Action, ...] = (*get_args(FileAccess), "connect", "bind", "syscall", "capability")
BASE_TIERS = frozenset({"seccomp", "cgroup", "network", "mount", "capabilities"})
"""What every node can put in force; AppArmor is found by `guard doctor`."""

Verdict = Literal["allowed", "watched", "denied"]
_VERDICTS: dict[Access, Verdict] = {"allow": "allowed", "watch": "watched", "deny": "denied"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer. `verdict`: allowed; watched: allowed, and an incident; denied: refused, and an incident.

    `rule`: the deciding rule in words; `place`: where it was written, `default` for the language's default.
    `tier`: what enforces a denial or sees the rest. `enforced`: False for a denial that is only recorded.
    `also`: tiers that refuse it too, beneath the first; AppArmor where a node has it.
    """

    phase: PhaseName
    action: Action
    object: str
    verdict: Verdict
    rule: str
    place: Place
    tier: str
    enforced: bool = True
    note: str = ""
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"{self.action} {self.object} in phase {self.phase}"
        said = f"{self.verdict}: {what}, by {self.rule} ({self.place})"
        seen = f"; tier {self.tier}" + (f", and {' and '.join(self.also)}" if self.also else "")
        if self.verdict == "denied" and not self.enforced:
            seen = f"; recorded but not refused: {self.note}"
        elif self.note:
            seen += f"; {self.note}"
        return said + seen


def explain(
    policy: Loaded | Policy,
    phase: PhaseName,
    action: Action,
    target: str | bytes,
    *,
    resolve: network.Resolver | None = None,
    tiers: Collection[str] = BASE_TIERS,
) -> Explanation:
    """What the policy says about an action.

    `target`: for the ways to use a file (read, write, …) a path (bytes as they are, text as a policy writes
    it); for connect `host:port`, `[v6]:port`, with `/tcp` (the default) or `/udp`; for bind the same with
    an address, port 0 being one that the kernel chooses; for syscall and capability a name.
    `resolve`: look names of rules up, to compare with an address; without it names match by their text alone.
    `tiers`: what the node has in force. With a bare Policy, places are unknown. ValueError for a target that
    cannot be read.
    """
    asked = _Question(policy, phase, tiers)
    if action == "connect":
        return asked.socket(action, _text(target), asked.connect(_text(target), resolve))
    if action == "bind":
        return asked.socket(action, _text(target), asked.bind(_text(target)))
    if action == "syscall":
        return asked.syscall(_text(target))
    if action == "capability":
        return asked.capability(_text(target))
    return asked.file(action, target if isinstance(target, bytes) else to_bytes(target))


class _Question:
    """One question's policy, phase and tiers."""

    def __init__(self, policy: Loaded | Policy, phase: PhaseName, tiers: Collection[str]) -> None:
        self._loaded = policy if isinstance(policy, Loaded) else None
        self._policy = policy.policy if isinstance(policy, Loaded) else policy
        self._phase = phase
        self._tiers = {*tiers, *self._policy.require}

    def file(self, action: FileAccess, path: bytes) -> Explanation:
        shown = to_text(path)
        classes = PathClasses(self._policy, self._phase)
        rule, side = classes.rule(path), SIDES[action]
        if rule is None or classes.access(path, side) != "deny":
            decision = access_rules.decide(self._policy, self._phase, action, path)
            if decision is not None:
                verdict: Verdict = "denied" if decision.denied else "allowed"
                tier = "apparmor" if decision.denied else "tracepoint"
                return self._answer(action, shown, verdict, decision.rule, decision.where, tier)
        if rule is None:
            return self._unclassed(action, path)
        access = classes.access(path, side)
        where = self._access_where(rule.name, rule.where, side)
        words = f"class {rule.name} ({to_text(rule.path)}), {side}: {access}"
        if rule.name == HIDDEN:
            words = f"filesystem.hidden ({to_text(rule.path)})"
        elif self._phase != "agent" and where == rule.where:
            words += " (setup and verify are the platform's)"
        tier = self._denying_tier(rule.name) if access == "deny" else "tracepoint"
        also = ("apparmor",) if access == "deny" and tier != "apparmor" else ()
        return self._answer(action, shown, _VERDICTS[access], words, where, tier, also=also)

    def socket(self, action: Literal["connect", "bind"], target: str, found: Explanation) -> Explanation:
        """`found`, unless AppArmor refuses the socket that it is about."""
        host, _, protocol = endpoint(target, lowest=0)
        address = address_of(host)
        version = address.version if address else None
        for rule, where in raw.of(self._policy, self._phase) if found.verdict == "allowed" else ():
            if rule.deny and sockets.is_about(rule, version, protocol):
                return self._answer(action, target, "denied", f"apparmor.raw: {rule.text}", where, "apparmor")
        return found

    def connect(self, target: str, resolve: network.Resolver | None) -> Explanation:
        host, port, protocol = endpoint(target)
        own = self._phase_has("network")
        base: tuple[str | int, ...] = ("phases", self._phase, "network") if own else ("network",)
        rules = network.network_of(self._policy, self._phase)
        for index, rule in enumerate(rules.egress):
            if egress_decides(rule, host, port, protocol, resolve):
                verdict: Verdict = "allowed" if rule.action == "allow" else "denied"
                where = self._written((*base, "egress", index), ("network", "egress", index))
                return self._answer("connect", target, verdict, f"egress rule {rule.name}", where, "cgroup")
        if is_own_loopback(host):
            return self._answer("connect", target, "allowed", "the sandbox's own loopback", (), "cgroup")
        verdict = "allowed" if rules.default_action == "allow" else "denied"
        where = self._written((*base, "default_action"), ("network", "default_action"))
        tier = "cgroup" if network.needs_link(self._policy) else "network"
        note = "" if tier == "cgroup" else "no phase lets anything out, so the sandbox has no link"
        words = f"network.default_action: {rules.default_action}"
        return self._answer("connect", target, verdict, words, where, tier, note)

    def bind(self, target: str) -> Explanation:
        host, port, protocol = endpoint(target, lowest=0)
        address = address_of(host)
        if address is None:
            raise ValueError(f"`{target}` names no address; write address:port or [v6]:port")
        base: Loc = ("phases", self._phase, "network") if self._phase_has("network") else ("network",)
        rules = network.network_of(self._policy, self._phase)
        for index, rule in enumerate(rules.bind):
            if binds.decides(rule, address, port, protocol):
                verdict: Verdict = "allowed" if rule.action == "allow" else "denied"
                where = self._written((*base, "bind", index), ("network", "bind", index))
                return self._answer("bind", target, verdict, f"bind rule {rule.name}", where, "cgroup")
        verdict = "allowed" if rules.default_bind == "allow" else "denied"
        stated = self._written((*base, "default_bind"), ("network", "default_bind"))
        where = stated if self._loaded and self._loaded.has(stated) else ()
        words = f"network.default_bind: {rules.default_bind}"
        return self._answer("bind", target, verdict, words, where, "cgroup")

    def syscall(self, name: str) -> Explanation:
        calls = seccomp.syscalls_of(self._policy, self._phase)
        key: tuple[str | int, ...] | None = None
        if name in calls.deny:
            key = ("deny", calls.deny.index(name))
        elif name in seccomp.IO_URING and calls.io_uring == "deny":
            key = ("io_uring",)
        for index, rule in enumerate(seccomp.raw_of(self._policy, self._phase) if key is None else ()):
            if name in rule.names and rule.action == "SCMP_ACT_ERRNO":
                return self._own_call(name, rule, index)
        if key is None:
            note = ""
            if name in ("clone", "clone3", "unshare", "ioctl"):
                note = "its arguments may still be refused (userns, tiocsti, extent_exchange)"
            return self._by_apparmor(name, note)
        where = self._written(("phases", self._phase, "syscalls", *key), ("syscalls", *key))
        words = f"syscalls.{key[0]}"
        return self._answer("syscall", name, "denied", words, where, "seccomp")

    def _by_apparmor(self, name: str, note: str) -> Explanation:
        """Of a call that the filter lets through."""
        for rule, where, whole in raw_calls.denials(self._policy, self._phase, name):
            if whole:
                return self._answer(
                    "syscall", name, "denied", f"apparmor.raw: {rule.text}", where, "apparmor"
                )
            place = f" ({self._loaded.place(where)})" if self._loaded else ""
            note = f"{note}; " * bool(note) + f"AppArmor may refuse it by `{rule.text}`{place}"
        return self._answer("syscall", name, "allowed", "no rule", ("syscalls",), "seccomp", note)

    def _own_call(self, name: str, rule: CallRule, index: int) -> Explanation:
        base: Loc = ("seccomp", "raw", index)
        where = self._written(("phases", self._phase, *base), base)
        note = f"only with {seccomp.condition(rule)}" if rule.args else ""
        return self._answer("syscall", name, "denied", f"seccomp.raw: {rule.errno}", where, "seccomp", note)

    def capability(self, name: str) -> Explanation:
        word = name.lower().removeprefix("cap_")
        if word not in capabilities.KNOWN:
            raise ValueError(f"there is no capability `{name}`; see capabilities(7)")
        for rule, where in raw.of(self._policy, self._phase):
            if rule.kind == "capability" and rule.deny and word in (rule.rest.split() or [word]):
                return self._answer(
                    "capability", name, "denied", f"apparmor.raw: {rule.text}", where, "apparmor"
                )
        if word in capabilities.SANDBOX:
            return self._answer(
                "capability", name, "allowed", "what root in a sandbox has", (), "capabilities"
            )
        if word in capabilities.IN_USER_NAMESPACES and self._calls().userns == "allow":
            words, where = "syscalls.userns: allow, in a user namespace of its own", ("syscalls", "userns")
            return self._answer("capability", name, "allowed", words, where, "capabilities")
        words = "no command is given it"
        return self._answer("capability", name, "denied", words, (), "capabilities", also=("apparmor",))

    def _calls(self) -> Syscalls:
        return seccomp.syscalls_of(self._policy, self._phase)

    def _denying_tier(self, name: str) -> str:
        """Mounts hide what is hidden, and cover what the agent is denied in its own mount namespace; what
        binds the platform's phases only AppArmor can refuse."""
        by_mount = name == HIDDEN or (self._phase == "agent" and "mount" in self._tiers)
        return "mount" if by_mount else "apparmor"

    def _unclassed(self, action: FileAccess, path: bytes) -> Explanation:
        for index, folder in enumerate(self._policy.filesystem.workspace):
            top = canonical(to_bytes(folder))
            if (canonical(path) + b"/").startswith(top.rstrip(b"/") + b"/"):
                where = ("filesystem", "workspace", index)
                return self._answer(
                    action, to_text(path), "allowed", f"workspace {folder}", where, "tracepoint"
                )
        words = "no class holds it; root in the sandbox owns its own copy of the root"
        return self._answer(action, to_text(path), "allowed", words, (), "tracepoint")

    def _answer(
        self,
        action: Action,
        target: str,
        verdict: Verdict,
        rule: str,
        where: Loc,
        tier: str,
        note: str = "",
        *,
        also: tuple[str, ...] = (),
    ) -> Explanation:
        enforced = True
        also = tuple(one if one in self._tiers else f"{one} where a node has it" for one in also)
        if verdict == "denied" and self._policy.mode == "observe":
            enforced, note = False, "mode is observe"
        elif verdict == "denied" and tier not in self._tiers:
            enforced, note = False, f"it needs {tier}, which is not in force"
        place = self._loaded.place(where) if self._loaded else Place(self._policy.name)
        return Explanation(self._phase, action, target, verdict, rule, place, tier, enforced, note, also)

    def _access_where(self, name: str, rule: Loc, side: str) -> Loc:
        """The line that sets the access where one does, else the path's own."""
        if self._phase_has("protected") and name in self._policy.phases[self._phase].protected:
            return ("phases", self._phase, "protected", name)
        if self._phase != "agent":
            return rule
        explicit = ("filesystem", "protected", name, side)
        return explicit if self._loaded and self._loaded.has(explicit) else rule

    def _written(self, first: Loc, otherwise: Loc) -> Loc:
        return first if self._loaded and self._loaded.has(first) else otherwise

    def _phase_has(self, part: Literal["network", "protected"]) -> bool:
        rules = self._policy.phases.get(self._phase)
        return rules is not None and bool(getattr(rules, part))


def _text(target: str | bytes) -> str:
    return target if isinstance(target, str) else target.decode("utf-8", "backslashreplace")
