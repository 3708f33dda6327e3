"""The agent's side of the resolver: its process, the sandboxes' sockets, and what it is answered."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import itertools
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.resolver import ADDRESS, BURST, CONTROL_BYTES, FOUND_MAX, PORT
from invigilator.sandbox.resolver.answers import REFUSE, Answer, Answers

_log = logging.getLogger("invigilator.resolver")

_CLONE_NEWNET = 0x4000_0000
RECEIVE_BYTES = 32 << 10
"""Of questions that wait for one sandbox."""
SEND_S = 5.0
END_S = 5.0
RESTART_S = 1.0
"""Between the end of a process that nobody ended, and the next."""
TEXT_MAX = 1100
"""Bytes of a name as text, all of them odd and escaped."""


@dataclass(slots=True)
class _Served:
    """`lock`: nothing is put in force for one that has left, whose number in the sensor may be another's."""

    answers: Answers
    udp: socket.socket
    tcp: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False

    def close(self) -> None:
        self.udp.close()
        self.tcp.close()
        with self.lock:
            self.gone = True

    def answer(self, told: _Told) -> Answer:
        """What a question comes to."""
        with self.lock:
            if self.gone:
                return REFUSE
            if told.number is None:
                self.answers.too_fast(int(BURST))
            elif told.found is None:
                return self.answers.ask(told.name, told.family)
            else:
                return self.answers.found(told.name, told.family, told.found)
        return REFUSE


@dataclass(frozen=True, slots=True)
class _Told:
    """A question, with what was `found` for it; without a number: that the sandbox asks too fast."""

    sandbox: int
    number: int | None = None
    name: str = ""
    family: int = 0
    found: list[str] | None = None


class _ProtocolError(Exception):
    """The process said what it cannot mean."""


class Resolver:
    """One agent's. Its process starts with the first sandbox that needs it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: dict[int, _Served] = {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._listener: threading.Thread | None = None
        self._closing = threading.Event()

    def serve(self, namespace: int, answers: Answers) -> int:
        """Answer the sandbox of a network namespace (a descriptor); a number to `leave` by."""
        udp, tcp = _sockets(namespace)
        with self._lock:
            number = next(self._numbers)
            self._served[number] = _Served(answers, udp, tcp)
            try:
                if self._listener is None:
                    self._start()
                    self._listener = threading.Thread(target=self._listen, name="resolver", daemon=True)
                    self._listener.start()
                elif self._control is not None:
                    with contextlib.suppress(ConnectionError):  # it has just ended; the next is told of all
                        self._add(number)
            except OSError as error:
                self._served.pop(number).close()
                raise SandboxError(f"the resolver does not serve the sandbox: {error}") from error
        return number

    def leave(self, number: int) -> None:
        """The sandbox is gone."""
        with self._lock:
            served = self._served.pop(number, None)
            if served is not None:
                with contextlib.suppress(OSError):
                    self._send({"drop": number})
        if served is not None:
            served.close()

    @contextlib.contextmanager
    def holding(self, number: int) -> Iterator[None]:
        """Answer nothing to a sandbox meanwhile; the others' questions wait behind its own."""
        with self._served[number].lock:
            yield

    @property
    def pid(self) -> int | None:
        """Process id of the process, where there is one."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        with self._lock:
            left, self._served = list(self._served.values()), {}
            if self._control is not None:
                # Wakes the listener, which a close alone would not.
                with contextlib.suppress(OSError):
                    self._control.shutdown(socket.SHUT_RDWR)
        for served in left:
            served.close()
        if self._listener is not None:
            self._listener.join(END_S)
        self._end_process()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_S))
        with theirs:
            command = [sys.executable, "-m", "invigilator.sandbox.resolver.process", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
            )
        self._control = ours
        for number in self._served:
            self._add(number)

    def _add(self, number: int) -> None:
        served = self._served[number]
        self._send({"add": number}, [served.udp.fileno(), served.tcp.fileno()])

    def _send(self, body: dict[str, Any], descriptors: list[int] | None = None) -> None:
        if self._control is None:
            raise OSError("the resolver is being started")
        socket.send_fds(self._control, [json.dumps(body).encode()], descriptors or [])

    def _listen(self) -> None:
        while not self._closing.is_set():
            control = self._control
            with contextlib.suppress(OSError, _ProtocolError):
                while control is not None and (data := control.recv(CONTROL_BYTES)):
                    self._answer(_read(data))
            self._end_process()
            if not self._closing.wait(RESTART_S):
                _log.error("the resolver's process ended, or said what makes no sense: it is started again")
                with self._lock, contextlib.suppress(OSError):
                    self._start()

    def _answer(self, told: _Told) -> None:
        served, answer = self._served.get(told.sandbox), REFUSE
        try:
            if served is not None:
                answer = served.answer(told)
        except Exception:
            _log.exception("a question for %r could not be answered", told.name)
        if told.number is not None:
            with self._lock:
                self._send({"to": told.number, "verdict": answer.verdict, "addresses": answer.addresses})

    def _end_process(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read(data: bytes) -> _Told:
    """A message of the process, which parses strangers' bytes: nothing but what it may say is taken."""
    try:
        body = json.loads(data)
        sandbox = int(body["sandbox"])
        if "limit" in body:
            return _Told(sandbox)
        found = body.get("found")
        told = _Told(sandbox, int(body["n"]), str(body["name"]), int(body["family"]), found)
        if not isinstance(found, list | None):
            raise TypeError
        if len(told.name) > TEXT_MAX or told.family not in (0, 4, 6) or len(found or ()) > FOUND_MAX:
            raise ValueError
        for one in found or ():
            ipaddress.ip_address(str(one))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _ProtocolError from error
    return told


def _sockets(namespace: int) -> tuple[socket.socket, socket.socket]:
    """The name server's sockets, on the loopback of a network namespace."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        """In a thread of its own, which ends in that namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            if libc.setns(namespace, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                made.append(one := socket.socket(socket.AF_INET, kind))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
                one.bind((ADDRESS, PORT))
            made[1].listen()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        for one in made:
            one.close()
        raise SandboxError(f"no name server in the sandbox: {failed[0].strerror}") from failed[0]
    return made[0], made[1]


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), 0)
