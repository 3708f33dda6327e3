"""A seccomp filter under way: refusals go into libseccomp's filter, what it does not know is reported."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import IO, Any, cast

from invigilator.profiles.policy import CallRule

FOREIGN = {"x86_64": ("X86", "X32"), "aarch64": ("ARM",)}
"""By machine (uname -m): the other ABIs that its kernel may serve, as libseccomp names them."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that the filter refuses: the call (and argument), by which errno, by which policy key."""

    call: str
    errno: int
    where: tuple[str | int, ...]


def condition(rule: CallRule) -> str:
    """When a rule holds, in words."""
    signs = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GE": ">=", "GT": ">"}
    said = []
    for one in rule.args:
        if one.op == "SCMP_CMP_MASKED_EQ":
            said.append(f"argument {one.index} & {one.value:#x} == {one.value_two:#x}")
        else:
            said.append(f"argument {one.index} {signs[one.op.rpartition('_')[2]]} {one.value:#x}")
    return " and ".join(said)


def known(name: str) -> bool:
    """Whether libseccomp knows a system call of this name on this machine or on another."""
    return _number(name) != _UNKNOWN


def number(name: str) -> int | None:
    """This machine's number of a system call; None where it has none."""
    found = _number(name)
    return found if found >= 0 else None


_UNKNOWN = -1
"""__NR_SCMP_ERROR of seccomp.h."""


class SeccompMissingError(RuntimeError):
    """Filters cannot be made here."""


def _seccomp() -> Any:
    try:
        import seccomp
    except ImportError as error:
        raise SeccompMissingError("libseccomp's Python module is missing; install python3-seccomp") from error
    return seccomp


def _number(name: str) -> int:
    module = _seccomp()
    try:
        return int(module.resolve_syscall(module.Arch(), name))
    except (ValueError, RuntimeError):
        return _UNKNOWN


def _comparison(module: Any, op: str) -> Any:
    return getattr(module, op.removeprefix("SCMP_CMP_"))


class Writer:
    """Collects refusals into libseccomp's filter; what libseccomp does not know is reported, not dropped."""

    def __init__(self, *, foreign: bool) -> None:
        self._module = _seccomp()
        self._filter = self._module.SyscallFilter(defaction=self._module.ALLOW)
        # 2: a binary tree instead of one comparison a call (seccomp_attr_set(3)).
        self._filter.set_attr(self._module.Attr.CTL_OPTIMIZE, 2)
        self._refused_whole: set[str] = set()
        self.refusals: list[Refusal] = []
        self.oci: list[dict[str, Any]] = []
        self.unexpressed: list[str] = []
        others = FOREIGN.get(os.uname().machine, ())
        if foreign:
            self._filter.set_attr(self._module.Attr.ACT_BADARCH, self._module.ERRNO(errno.ENOSYS))
            where = ("syscalls", "foreign_abi")
            self.refusals += [
                Refusal(f"any call by ABI {abi.lower()}", errno.ENOSYS, where) for abi in others
            ]
        else:
            self._filter.set_attr(self._module.Attr.ACT_BADARCH, self._module.ALLOW)
            for abi in others:
                self._filter.add_arch(getattr(self._module.Arch, abi))

    def refuse(
        self, name: str, code: int, where: tuple[str | int, ...], masked: tuple[int, int, int] | None = None
    ) -> None:
        """Answer `name` with `code`; `masked` (argument, mask, value): where argument & mask == value."""
        conditions = []
        if masked:
            argument, mask, value = masked
            conditions = [self._module.Arg(argument, self._module.MASKED_EQ, mask, value)]
        if name in self._refused_whole:
            return
        if not known(name):
            self.unexpressed.append(f"{name}: this machine's libseccomp does not know this call")
            return
        self._filter.add_rule(self._module.ERRNO(code), name, *conditions)
        self._say(
            name, "SCMP_ACT_ERRNO", code, [(masked[0], "SCMP_CMP_MASKED_EQ", *masked[1:])] if masked else []
        )
        if not masked:
            self._refused_whole.add(name)
        detail = f"{name}(argument {masked[0]} & {masked[1]:#x} == {masked[2]:#x})" if masked else name
        self.refusals.append(Refusal(detail, code, where))

    def own(self, name: str, rule: CallRule, where: tuple[str | int, ...]) -> None:
        """A rule as an OCI profile has it."""
        if name in self._refused_whole or not known(name):
            why = (
                "it is refused whole already"
                if name in self._refused_whole
                else "libseccomp does not know it"
            )
            self.unexpressed.append(f"{name}: {why}")
            return
        code = getattr(errno, rule.errno)
        action = self._module.LOG if rule.action == "SCMP_ACT_LOG" else self._module.ERRNO(code)
        conditions = [
            self._module.Arg(one.index, _comparison(self._module, one.op), one.value, one.value_two)
            for one in rule.args
        ]
        try:
            self._filter.add_rule(action, name, *conditions)
        except (OSError, RuntimeError, ValueError) as error:
            self.unexpressed.append(f"{name}: libseccomp refuses the rule ({error})")
            return
        self._say(name, rule.action, code, [(a.index, a.op, a.value, a.value_two) for a in rule.args])
        if rule.action == "SCMP_ACT_ERRNO":
            detail = f"{name}({condition(rule)})" if rule.args else name
            self.refusals.append(Refusal(detail, code, where))

    def _say(self, name: str, action: str, code: int, args: list[tuple[int, str, int, int]]) -> None:
        """The rule in the words of an OCI runtime's profile."""
        rule: dict[str, Any] = {"names": [name], "action": action}
        if action == "SCMP_ACT_ERRNO":
            rule["errnoRet"] = code
        if args:
            keys = ("index", "op", "value", "valueTwo")
            rule["args"] = [dict(zip(keys, one, strict=True)) for one in args]
        self.oci.append(rule)

    def program(self) -> bytes:
        """The BPF program as bytes."""
        with os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as file:
            self._filter.export_bpf(cast("IO[bytes]", file))
            file.seek(0)
            return file.read()
