"""The guard's resolver: a sandbox with egress rules by name asks here, and gets the names that they allow.

Each such sandbox has a name server on its own loopback (`ADDRESS`, port 53, UDP and TCP): the sockets are
made in its network namespace, so nobody else reaches them, nothing has to be let out for them, and which
sandbox asks is known by the socket. They are served by one process (`process`) that has no privileges, parses
what sandboxes and name servers send, and decides nothing: what becomes of a question, and of the addresses
found, is the agent's word (`answers`), who puts an address into the sandbox's rules before it is handed out.
"""

from __future__ import annotations

ADDRESS = "127.0.0.53"
"""Of the sandbox's own loopback, away from 127.0.0.1, where tasks have servers of their own."""
PORT = 53
RATE_PER_S, BURST = 50.0, 200.0
"""Questions of one sandbox. Beyond, its socket is not read: the kernel drops what does not fit."""
CONTROL_BYTES = 64 << 10
"""Of one message between the agent and the process."""
FOUND_MAX = 512
"""Addresses of one answer that are looked at: by TCP a name server can say some 4,000, more than a message
between the two holds."""
