"""libbpf through ctypes: opens, sizes, loads and attaches the kernel programs, and checks their layout.

Only what the sensor needs of libbpf 1.x. Every failure is a `LoadError` with what libbpf and the kernel said.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BTF_KIND_STRUCT = 4
BTF_KIND_TYPEDEF = 8
BTF_KIND_FUNC = 12
BTF_KIND_DATASEC = 15
LOG_LINES = 12


class LoadError(OSError):
    """The kernel programs could not be loaded, attached or run."""


class _TestRun(ctypes.Structure):
    """`struct bpf_test_run_opts` of libbpf."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_said: list[str] = []


def _listen(level: int, format_: bytes, arguments: int) -> int:
    """Keep libbpf's warnings: they are the only place where the verifier's reasons appear."""
    if level == 0:
        line = ctypes.create_string_buffer(65536)
        ctypes.CDLL(None).vsnprintf(line, len(line), format_, ctypes.c_void_p(arguments))
        _said.append(line.value.decode(errors="replace"))
        del _said[:-8]
    return 0


_listener = _PRINT(_listen)


def library() -> ctypes.CDLL:
    """libbpf.so.1 with the prototypes that are used here."""
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as missing:
        raise LoadError(errno.ENOENT, "libbpf.so.1 is missing: apt-get install libbpf1") from missing
    pointers = (
        "bpf_object__open_file bpf_object__find_map_by_name bpf_object__find_program_by_name bpf_object__btf "
        "bpf_map__initial_value bpf_program__attach bpf_program__attach_cgroup btf__type_by_id "
        "btf__load_vmlinux_btf"
    )
    for name in pointers.split():
        getattr(lib, name).restype = ctypes.c_void_p
    for name in ("btf__name_by_offset", "bpf_program__name"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.libbpf_set_print(_listener)
    return lib


class Kernel:
    """One object of kernel programs: opened, settings written, loaded."""

    def __init__(self, path: Path) -> None:
        self._lib = library()
        self._object = self._lib.bpf_object__open_file(str(path).encode(), None)
        if not self._object:
            raise self._error(ctypes.get_errno(), f"cannot open {path.name}")
        self._links: list[int] = []
        self._walks: dict[str, int] = {}
        self._programs: dict[str, int] = {}
        self._fds: dict[str, int] = {}
        self._memory: dict[str, tuple[mmap.mmap, dict[str, tuple[int, int]]]] = {}

    def size_map(self, name: str, entries: int) -> None:
        """Entries of a map (bytes of a ring), before `load`."""
        self._check(
            self._lib.bpf_map__set_max_entries(ctypes.c_void_p(self._map(name)), ctypes.c_uint32(entries)),
            name,
        )

    def set_constants(self, values: Mapping[str, int | Sequence[int]]) -> None:
        """Write `const volatile` settings, before `load`."""
        size = ctypes.c_size_t()
        memory = self._lib.bpf_map__initial_value(ctypes.c_void_p(self._map(".rodata")), ctypes.byref(size))
        places = self._variables(".rodata")
        for name, value in values.items():
            at, length = places[name]
            numbers = value if isinstance(value, Sequence) else [value]
            width = length // len(numbers)
            raw = b"".join(number.to_bytes(width, "little") for number in numbers)
            ctypes.memmove(memory + at, raw, length)

    def only(self, program: str) -> None:
        """Load no other program than this one."""
        step = self._lib.bpf_object__next_program
        step.restype = ctypes.c_void_p
        at = step(ctypes.c_void_p(self._object), None)
        while at:
            wanted = self._lib.bpf_program__name(ctypes.c_void_p(at)).decode() == program
            self._lib.bpf_program__set_autoload(ctypes.c_void_p(at), ctypes.c_bool(wanted))
            at = step(ctypes.c_void_p(self._object), ctypes.c_void_p(at))

    def leave_out(self, program: str) -> None:
        """Do not load a program, before `load`."""
        self._lib.bpf_program__set_autoload(ctypes.c_void_p(self._program(program)), ctypes.c_bool(False))

    def load(self) -> None:
        """Verify and load every program that was not left out."""
        self._check(
            self._lib.bpf_object__load(ctypes.c_void_p(self._object)), "the kernel refused the sensor"
        )

    def members(self, struct: str) -> dict[str, tuple[int, int]]:
        """Byte offset of each member of a struct, and the struct's size under the key ""."""
        btf = ctypes.c_void_p(self._lib.bpf_object__btf(ctypes.c_void_p(self._object)))
        number = self._lib.btf__find_by_name_kind(btf, struct.encode(), BTF_KIND_STRUCT)
        if number < 0:
            raise LoadError(errno.ENOENT, f"struct {struct} is not in the object's BTF")
        name_at, info, size, entries = self._type(btf, number, 3)
        del name_at
        found = {"": (size, 0)}
        for entry in entries[: info & 0xFFFF]:
            name = self._lib.btf__name_by_offset(btf, ctypes.c_uint32(int(entry[0])))
            type_size = self._lib.btf__resolve_size(btf, ctypes.c_uint32(int(entry[1])))
            found[name.decode()] = ((int(entry[2]) & 0xFFFFFF) // 8, int(type_size))
        return found

    def map_fd(self, name: str) -> int:
        """Descriptor of a map; it stays the object's."""
        if name not in self._fds:
            self._fds[name] = int(self._lib.bpf_map__fd(ctypes.c_void_p(self._map(name))))
        return self._fds[name]

    def variable(self, section: str, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A global variable of the loaded programs as a live array, shape (n,)."""
        if section not in self._memory:
            size = ctypes.c_size_t()
            self._lib.bpf_map__initial_value(ctypes.c_void_p(self._map(section)), ctypes.byref(size))
            page = mmap.PAGESIZE
            memory = mmap.mmap(self.map_fd(section), (size.value + page - 1) // page * page)
            self._memory[section] = (memory, self._variables(section))
        memory, places = self._memory[section]
        at, length = places[name]
        return np.frombuffer(memory, dtype, length // np.dtype(dtype).itemsize, at)

    def attach(self, program: str) -> None:
        """Attach a tracing program to its hook."""
        link = self._lib.bpf_program__attach(ctypes.c_void_p(self._program(program)))
        if not link:
            raise self._error(ctypes.get_errno(), f"cannot attach {program}")
        self._links.append(link)

    def walk(self, program: str) -> None:
        """Run an iterator over all it goes over, to the end. It is attached at its first walk."""
        if program not in self._walks:
            self.attach(program)
            self._walks[program] = self._lib.bpf_link__fd(ctypes.c_void_p(self._links[-1]))
        fd = self._lib.bpf_iter_create(self._walks[program])
        self._check(fd, program)
        try:
            while os.read(fd, 4096):
                pass
        finally:
            os.close(fd)

    def attach_cgroup(self, program: str, cgroup_fd: int) -> int:
        """Attach a program to a cgroup; the link's handle for `detach`."""
        link = self._lib.bpf_program__attach_cgroup(ctypes.c_void_p(self._program(program)), cgroup_fd)
        if not link:
            raise self._error(ctypes.get_errno(), f"cannot attach {program} to the cgroup")
        self._links.append(link)
        return int(link)

    def detach(self, link: int) -> None:
        """Undo one `attach_cgroup`."""
        self._links.remove(link)
        self._lib.bpf_link__destroy(ctypes.c_void_p(link))

    def run(self, program: str, context: npt.NDArray[Any]) -> int:
        """Run a `syscall` program on `context`, which it may change; its return value as a signed int."""
        options = _TestRun(sz=ctypes.sizeof(_TestRun))
        options.ctx_in = context.ctypes.data
        options.ctx_size_in = context.nbytes
        fd = self._program_fd(program)
        self._check(self._lib.bpf_prog_test_run_opts(fd, ctypes.byref(options)), program)
        return ctypes.c_int32(options.retval).value

    def update(self, name: str, key: bytes, value: bytes) -> None:
        """Set one entry of a map."""
        self._check(self._lib.bpf_map_update_elem(self.map_fd(name), key, value, ctypes.c_uint64(0)), name)

    def delete(self, name: str, key: bytes) -> None:
        """Remove one entry of a map, if it is there."""
        self._lib.bpf_map_delete_elem(self.map_fd(name), key)

    def missed(self, programs: Sequence[str]) -> int:
        """Runs of the loaded ones that the kernel skipped because they were already running on that CPU."""
        # struct bpf_prog_info (linux/bpf.h): recursion_misses is the u64 at byte 208
        info = ctypes.create_string_buffer(232)
        missed = 0
        for fd in (self._program_fd(program) for program in programs):
            length = ctypes.c_uint32(len(info))
            if fd >= 0 and not self._lib.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(length)):
                missed += int.from_bytes(info.raw[208:216], "little")
        return missed

    def close(self) -> None:
        """Detach and unload everything."""
        for link in self._links:
            self._lib.bpf_link__destroy(ctypes.c_void_p(link))
        self._links.clear()
        if self._object:
            self._lib.bpf_object__close(ctypes.c_void_p(self._object))
            self._object = 0

    def _map(self, name: str) -> int:
        found = 0
        if name.startswith("."):  # libbpf puts the object's name in front of these
            candidate = self._lib.bpf_object__next_map
            candidate.restype = ctypes.c_void_p
            self._lib.bpf_map__name.restype = ctypes.c_char_p
            at = candidate(ctypes.c_void_p(self._object), None)
            while at and not found:
                if self._lib.bpf_map__name(ctypes.c_void_p(at)).decode().endswith(name):
                    found = at
                at = candidate(ctypes.c_void_p(self._object), ctypes.c_void_p(at))
        else:
            found = self._lib.bpf_object__find_map_by_name(ctypes.c_void_p(self._object), name.encode())
        if not found:
            raise LoadError(errno.ENOENT, f"the object has no map {name}")
        return int(found)

    def _program(self, name: str) -> int:
        if name not in self._programs:
            found = self._lib.bpf_object__find_program_by_name(ctypes.c_void_p(self._object), name.encode())
            if not found:
                raise LoadError(errno.ENOENT, f"the object has no program {name}")
            self._programs[name] = int(found)
        return self._programs[name]

    def _program_fd(self, name: str) -> int:
        return int(self._lib.bpf_program__fd(ctypes.c_void_p(self._program(name))))

    def _type(
        self, btf: ctypes.c_void_p, number: int, words: int
    ) -> tuple[int, int, int, npt.NDArray[np.uint32]]:
        at = self._lib.btf__type_by_id(btf, ctypes.c_uint32(number))
        head = np.frombuffer(ctypes.string_at(at, 12), np.uint32)
        count = int(head[1]) & 0xFFFF
        entries = np.frombuffer(ctypes.string_at(at + 12, 4 * words * count), np.uint32).reshape(count, words)
        return int(head[0]), int(head[1]), int(head[2]), entries

    def _variables(self, section: str) -> dict[str, tuple[int, int]]:
        btf = ctypes.c_void_p(self._lib.bpf_object__btf(ctypes.c_void_p(self._object)))
        number = self._lib.btf__find_by_name_kind(btf, section.encode(), BTF_KIND_DATASEC)
        places = {}
        for entry in self._type(btf, number, 3)[3]:
            at = self._lib.btf__type_by_id(btf, ctypes.c_uint32(int(entry[0])))
            name_at = int(np.frombuffer(ctypes.string_at(at, 4), np.uint32)[0])
            name = self._lib.btf__name_by_offset(btf, ctypes.c_uint32(name_at)).decode()
            places[name] = (int(entry[1]), int(entry[2]))
        return places

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise self._error(-result if result < -1 else ctypes.get_errno(), what)

    def _error(self, number: int, what: str) -> LoadError:
        reasons = [line for text in _said for line in text.strip().splitlines()][-LOG_LINES:]
        _said.clear()
        return LoadError(number, f"{what}: {os.strerror(number)}" + "".join(f"\n  {r}" for r in reasons))


def kernel_has(name: str, kind: int = BTF_KIND_FUNC) -> bool:
    """Whether the running kernel's BTF has a function (a kfunc), or another kind of thing, of that name."""
    lib = library()
    btf = lib.btf__load_vmlinux_btf()
    if not btf:
        return False
    found = lib.btf__find_by_name_kind(ctypes.c_void_p(btf), name.encode(), kind) > 0
    lib.btf__free(ctypes.c_void_p(btf))
    return bool(found)


def check_layout(kernel: Kernel, struct: str, dtype: np.dtype[Any]) -> None:
    """Refuse to go on where a struct of the object and its dtype here differ in size, names or offsets."""
    members = kernel.members(struct)
    size = members.pop("")[0]
    ours = {name: (int(field[1]), field[0].itemsize) for name, field in (dtype.fields or {}).items()}
    if size != dtype.itemsize or members != ours:
        differing = {
            name: (members.get(name), ours.get(name))
            for name in members.keys() | ours.keys()
            if members.get(name) != ours.get(name)
        }
        raise LoadError(
            errno.EINVAL,
            f"struct {struct} of the object ({size} bytes) is not the record known here "
            f"({dtype.itemsize} bytes); differing: {differing}. Delete ebpf/build and compile again.",
        )
