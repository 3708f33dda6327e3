/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Sockets: who was spoken to, and what came of it. */
#pragma once

#include "dns.h"
#include "resolve.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17
#define SOCK_RAW 3
#define SOCK_PACKET 10
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7
#define EINPROGRESS 115
#define EINTR 4
#define NAME_BYTES 108 /* sockaddr_un.sun_path */

/* Connects whose result comes later, by socket: the head of the event to come. */
struct waiting { struct event e; };
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct waiting);
} connects SEC(".maps");

static __always_inline void put_v4(struct event *e, __u32 address)
{
	e->address[10] = e->address[11] = 0xff;
	__builtin_memcpy(&e->address[12], &address, 4);
}

/* Take a socket address of the process into the event. */
static __always_inline int take_address(struct scratch *s, __u64 pointer, __u32 length)
{
	struct { __u16 family; __be16 port; __u32 v4; __u8 v6[16]; __u32 scope; } name = {};
	struct event *e = &s->e;
	__u32 bytes = length > sizeof(name) ? sizeof(name) : length;

	if (!pointer || length < 2 || bpf_probe_read_user(&name, within(bytes, 31), (void *)pointer))
		return -1;
	e->family = name.family;
	if (name.family == AF_INET) {
		e->port = __builtin_bswap16(name.port);
		put_v4(e, name.v4);
	} else if (name.family == AF_INET6) {
		e->port = __builtin_bswap16(name.port);
		__builtin_memcpy(e->address, name.v6, 16);
	}
	return name.family;
}

/*
 * A Unix socket's name: a path, as far as the caller says that it goes, with where it led and what is there; or an
 * abstract name, told as said with its leading NUL.
 */
static __always_inline int unix_name(struct scratch *s, __u64 pointer, __u32 length, __u32 last)
{
	char first = 0;

	if (length <= 2 || bpf_probe_read_user(&first, 1, (void *)(pointer + 2)))
		return 0;
	length -= 2;
	if (length > NAME_BYTES)
		length = NAME_BYTES;
	if (first) {
		s->e.path = located_in(AT_FDCWD, pointer + 2, length + 1, last);
		take_led_to(s);
		s->e.path2 = said_in(pointer + 2, length + 1);
		return 0;
	}
	if (!bpf_probe_read_user(&s->text[TEXT_AT], within(length, 127), (void *)(pointer + 2)))
		s->e.path2 = intern(length, 0, STRING_SAID);
	return 0;
}

/* The socket behind an open file; 0 where it is none. */
__noinline __u64 sock_of(__u64 address)
{
	struct file *file = (struct file *)address;
	struct scratch *s = scratch();
	struct socket *socket;
	struct inode *inode;

	if (!file || !s)
		return 0;
	inode = GET(file, f_inode);
	if ((GET(inode, i_mode) & 0170000) != 0140000)
		return 0;
	socket = GET(file, private_data);
	return socket ? number_of(s, GET(socket, sk)) : 0;
}

static __always_inline void take_socket(struct scratch *s, struct sock *sk)
{
	s->e.protocol = GET(sk, sk_protocol);
	if (!s->e.family)
		s->e.family = GET(sk, __sk_common.skc_family);
}

static __always_inline void take_peer(struct event *e, struct sock *sk)
{
	e->family = GET(sk, __sk_common.skc_family);
	e->port = __builtin_bswap16(GET(sk, __sk_common.skc_dport));
	if (e->family == AF_INET6) {
		struct in6_addr peer = GET(sk, __sk_common.skc_v6_daddr);

		__builtin_memcpy(e->address, &peer, 16);
	} else if (e->family == AF_INET) {
		put_v4(e, GET(sk, __sk_common.skc_daddr));
	}
}

/* A connected Unix socket's peer is a file: its identity. */
static __always_inline void take_unix_peer(struct scratch *s, struct sock *sk)
{
	struct unix_sock *peer = (struct unix_sock *)GET((struct unix_sock *)sk, peer);
	struct dentry *dentry;

	if (!peer)
		return;
	dentry = GET(peer, path.dentry);
	if (!dentry)
		return;
	take_object(s, GET(dentry, d_inode), dentry);
	s->e.flags &= ~FLAG_PATH_USER;
}

static __always_inline void told_later(struct scratch *s, struct sock *sk)
{
	__u64 key = (__u64)sk;
	struct waiting *waiting = (struct waiting *)&s->e;
	__u8 state = GET(sk, __sk_common.skc_state);
	int error = GET(sk, sk_err);

	s->e.kind = EVENT_CONNECT_RESULT;
	s->e.a1 = 0;
	if (state == TCP_ESTABLISHED || state == TCP_CLOSE) {
		s->e.result = state == TCP_ESTABLISHED ? 0 : -error;
		finish();
		return;
	}
	bpf_map_update_elem(&connects, &key, waiting, BPF_ANY);
}

__noinline int connected(__u32 fd, __u64 pointer, __u32 length)
{
	struct scratch *s = begin(EVENT_CONNECT, CLASS_NETWORK);
	struct sock *sk;
	int family;

	if (!s)
		return 0;
	family = take_address(s, pointer, length);
	sk = (struct sock *)sock_of(file_at(fd));
	if (sk) {
		take_socket(s, sk);
		s->e.a0 = GET(sk, __sk_common.skc_cookie.counter);
		if (!s->e.a0)
			s->e.a0 = hash_key[0] ^ (__u64)sk;
	}
	if (family == AF_UNIX) {
		unix_name(s, pointer, length, LAST_FOLLOWED);
		if (sk && s->call.result >= 0)
			take_unix_peer(s, sk);
	}
	finish();
	if (sk && (family == AF_INET || family == AF_INET6) && s->e.protocol == IPPROTO_TCP &&
	    (s->call.result == -EINPROGRESS || s->call.result == -EINTR || s->call.result == -512))
		told_later(s, sk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_sock_state, struct sock *sk, int from, int to)
{
	__u64 key = (__u64)sk;
	struct waiting *waiting;
	struct event e;
	struct slot *slot;

	/* Numbered while the connect is under way, so that it and its result carry the same cookie. */
	if (from == TCP_CLOSE && to == TCP_SYN_SENT && is_near(cgroup_of(bpf_get_current_task_btf())))
		bpf_get_socket_cookie(sk);
	if (from != TCP_SYN_SENT || (to != TCP_ESTABLISHED && to != TCP_CLOSE))
		return 0;
	waiting = bpf_map_lookup_elem(&connects, &key);
	if (!waiting)
		return 0;
	e = waiting->e;
	bpf_map_delete_elem(&connects, &key);
	slot = slot_of(e.slot);
	if (!slot)
		return 0;
	e.time_ns = bpf_ktime_get_boot_ns();
	e.result = to == TCP_ESTABLISHED ? 0 : -sk->sk_err;
	e.nr = 0xffff;
	submit(slot, &e);
	return 0;
}

#define NR_WRITEV 20
#define NR_I386_WRITEV 146
#define NR_X32_WRITEV 516

/* Messages through write(2) and writev(2) on a connected socket. */
__noinline int asked_by_write(__u64 address)
{
	struct scratch *s = scratch();
	struct sock *sk = (struct sock *)sock_of(address);
	__u32 nr, vector;

	if (!s || !sk)
		return 0;
	take_socket(s, sk);
	take_peer(&s->e, sk);
	if (!to_name_server(s))
		return 0;
	nr = s->call.nr;
	vector = s->call.abi == ABI_NATIVE ? NR_WRITEV : s->call.abi == ABI_I386 ? NR_I386_WRITEV : NR_X32_WRITEV;
	if (nr == vector)
		take_pieces(s->call.args[1], s->call.args[2]);
	else
		one_piece(s, s->call.args[1], s->call.args[2]);
	return asked();
}

/* The pieces as one datagram or message: SEND where it names a destination, DNS where it goes to a name server. */
static __always_inline int sent(__u32 fd, __u64 name, __u32 name_length)
{
	struct scratch *s = begin(EVENT_SEND, CLASS_NETWORK);
	struct sock *sk;
	int family;

	if (!s)
		return 0;
	sk = (struct sock *)sock_of(file_at(fd));
	if (!sk)
		return 0;
	s->e.a0 = whole_length(s);
	s->e.family = 0;
	take_socket(s, sk);
	if (name && name_length) {
		family = take_address(s, name, name_length);
		if (family == AF_UNIX)
			unix_name(s, name, name_length, LAST_FOLLOWED);
		finish();
	} else {
		take_peer(&s->e, sk);
	}
	return to_name_server(s) ? asked() : 0;
}

HANDLER(on_sendto)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	one_piece(s, s->call.args[1], s->call.args[2]);
	return sent(s->call.args[0], s->call.args[4], s->call.args[5]);
}

/* struct msghdr of the process, in its own word size. */
__noinline int sent_message(__u32 fd, __u64 pointer)
{
	struct { __u64 name; __u32 name_length, pad; __u64 parts; __u64 count; } head = {};
	struct scratch *s = scratch();

	if (!s)
		return 0;
	if (s->call.abi == ABI_NATIVE) {
		if (bpf_probe_read_user(&head, sizeof(head), (void *)pointer))
			return 0;
	} else {
		struct { __u32 name, name_length, parts, count; } narrow = {};

		if (bpf_probe_read_user(&narrow, sizeof(narrow), (void *)pointer))
			return 0;
		head.name = narrow.name;
		head.name_length = narrow.name_length;
		head.parts = narrow.parts;
		head.count = narrow.count;
	}
	take_pieces(head.parts, head.count);
	return sent(fd, head.name, head.name_length);
}

HANDLER(on_sendmsg)
{
	struct scratch *s = scratch();

	return s ? sent_message(s->call.args[0], s->call.args[1]) : 0;
}

#define MANY_MAX 1024 /* UIO_MAXIOV (linux/uio.h): what one sendmmsg takes */

struct many { __u32 fd; __u32 step; __u64 pointer; };

static long many_step(__u32 i, struct many *many)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *state = bpf_task_storage_get(&tasks, task, 0, 0);
	struct scratch *s = scratch();

	if (!s || !state)
		return 1;
	if (i) { /* the head again: each message is its own fact */
		fill_head(s, task, state);
		s->e.result = s->call.result;
		s->e.nr = s->call.nr;
		s->e.abi = s->call.abi;
	}
	sent_message(many->fd, many->pointer + i * many->step);
	return 0;
}

HANDLER(on_sendmmsg)
{
	struct scratch *s = scratch();
	struct many many = {};
	__u32 count;

	if (!s)
		return 0;
	many.fd = s->call.args[0];
	many.pointer = s->call.args[1];
	many.step = s->call.abi == ABI_NATIVE ? 64 : 32; /* struct mmsghdr */
	count = s->call.result > 0 ? s->call.result : 1;
	bpf_loop(count > MANY_MAX ? MANY_MAX : count, many_step, &many, 0);
	return 0;
}

__noinline int bound(__u32 fd, __u64 pointer, __u32 length)
{
	struct scratch *s = begin(EVENT_BIND, CLASS_NETWORK);
	struct sock *sk;

	if (!s)
		return 0;
	if (take_address(s, pointer, length) == AF_UNIX)
		unix_name(s, pointer, length, LAST_STAYS);
	sk = (struct sock *)sock_of(file_at(fd));
	if (sk)
		take_socket(s, sk);
	return finish();
}

__noinline int listening(__u32 fd, __u32 backlog)
{
	struct scratch *s = begin(EVENT_LISTEN, CLASS_NETWORK);
	struct sock *sk;

	if (!s)
		return 0;
	s->e.a0 = backlog;
	sk = (struct sock *)sock_of(file_at(fd));
	if (sk) {
		take_socket(s, sk);
		s->e.port = GET(sk, __sk_common.skc_num);
	}
	return finish();
}

__noinline int accepted(__s64 fd)
{
	struct scratch *s = begin(EVENT_ACCEPT, CLASS_NETWORK);
	struct sock *sk;

	if (!s || fd < 0)
		return 0;
	sk = (struct sock *)sock_of(file_at(fd));
	if (sk) {
		take_socket(s, sk);
		take_peer(&s->e, sk);
		s->e.a0 = GET(sk, __sk_common.skc_num);
	}
	return finish();
}

/* Raw and packet sockets only. */
__noinline int made_socket(__u32 family, __u32 type, __u32 protocol)
{
	struct scratch *s = begin(EVENT_SOCKET, CLASS_NETWORK);

	if (!s || (family != AF_PACKET && (type & 15) != SOCK_RAW && (type & 15) != SOCK_PACKET))
		return 0;
	s->e.a0 = family;
	s->e.a1 = type;
	s->e.family = family;
	s->e.protocol = protocol;
	return finish();
}

HANDLER(on_connect)
{
	struct scratch *s = scratch();

	return s ? connected(s->call.args[0], s->call.args[1], s->call.args[2]) : 0;
}

HANDLER(on_bind)
{
	struct scratch *s = scratch();

	return s ? bound(s->call.args[0], s->call.args[1], s->call.args[2]) : 0;
}

HANDLER(on_listen)
{
	struct scratch *s = scratch();

	return s ? listening(s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_accept)
{
	struct scratch *s = scratch();

	return s ? accepted(s->call.result) : 0;
}

HANDLER(on_socket)
{
	struct scratch *s = scratch();

	return s ? made_socket(s->call.args[0], s->call.args[1], s->call.args[2]) : 0;
}

/* i386: one call for all of them (linux/net.h numbers them), arguments in memory. */
HANDLER(on_socketcall)
{
	struct scratch *s = scratch();
	__u32 args[6] = {}, call;

	if (!s)
		return 0;
	call = s->call.args[0];
	if (bpf_probe_read_user(args, call == 11 ? 24 : call == 20 || call == 9 ? 16 : 12,
				(void *)s->call.args[1]))
		return 0;
	switch (call) {
	case 1: return made_socket(args[0], args[1], args[2]);
	case 2: return bound(args[0], args[1], args[2]);
	case 3: return connected(args[0], args[1], args[2]);
	case 4: return listening(args[0], args[1]);
	case 5: case 18: return accepted(s->call.result);
	case 9:
		one_piece(s, args[1], args[2]);
		return sent(args[0], 0, 0);
	case 11:
		one_piece(s, args[1], args[2]);
		return sent(args[0], args[4], args[5]);
	case 16: return sent_message(args[0], args[1]);
	case 20: return sent_message(args[0], args[1]);
	}
	return 0;
}
