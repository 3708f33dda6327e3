"""Messages between the agent and its clients."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from invigilator.guard.wire import Channel, WireError

pytestmark = pytest.mark.usefixtures("no_descriptor_leak")


@pytest.fixture
def no_descriptor_leak():
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    yield
    assert {path.name for path in Path("/proc/self/fd").iterdir()} <= before


async def exchange(body, descriptors=()):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, receiver = Channel(near), Channel(far)
    try:
        _, message = await asyncio.gather(sender.send(body, descriptors), receiver.receive())
        return message
    finally:
        sender.close()
        receiver.close()


def test_a_message_arrives_as_it_was_sent():
    body = {"op": "exec", "id": 7, "text": 'quote " newline \n tab \t ünïcode'}
    assert asyncio.run(exchange(body)).body == body


def test_bytes_that_are_no_utf8_survive():
    name = os.fsdecode(b"caf\xe9 \xff")
    assert os.fsencode(asyncio.run(exchange({"path": name})).body["path"]) == b"caf\xe9 \xff"


def test_a_message_of_twenty_megabytes_arrives():
    body = {"command": ["x" * 1000] * 20_000}
    assert asyncio.run(exchange(body)).body == body


@pytest.mark.parametrize("text", ["short", "l" * 100_000])
def test_descriptors_arrive_in_order_beside_short_and_long_messages(text, tmp_path):
    first, second = os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    message = asyncio.run(exchange({"text": text}, (first, second)))
    try:
        sent, got = (first, second), message.descriptors
        assert [os.fstat(d).st_ino for d in got] == [os.fstat(d).st_ino for d in sent]
        assert not any(os.get_inheritable(d) for d in message.descriptors)
    finally:
        message.close()
        os.close(first)
        os.close(second)


def test_a_closed_connection_reads_as_none():
    async def run():
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Channel(near).close()
        receiver = Channel(far)
        try:
            return await receiver.receive()
        finally:
            receiver.close()

    assert asyncio.run(run()) is None


@pytest.mark.parametrize("raw", [b"Jnot json", b"J[1]", b"J\xff\xfe", b"M", b"X{}"])
def test_what_is_no_message_is_refused(raw):
    async def run():
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        receiver = Channel(far)
        try:
            near.send(raw)
            await receiver.receive()
        finally:
            near.close()
            receiver.close()

    with pytest.raises(WireError):
        asyncio.run(run())


def test_many_senders_on_one_channel_do_not_mix():
    async def run():
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sender, receiver = Channel(near), Channel(far)
        try:
            bodies = [{"n": n, "fill": "y" * (n * 700)} for n in range(200)]
            sending = asyncio.gather(*(sender.send(body) for body in bodies))
            got = [(await receiver.receive()).body for _ in bodies]
            await sending
            return sorted(got, key=lambda body: body["n"]) == bodies
        finally:
            sender.close()
            receiver.close()

    assert asyncio.run(run())
