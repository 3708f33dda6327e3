/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The name that a message to a name server asks for, in whatever pieces the process sends it. */
#pragma once

#include "record.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define DNS_PORT 53
#define DNS_HEAD 12
#define DNS_PREFIX 2
#define DNS_NAME 255
#define DNS_BYTES (DNS_PREFIX + DNS_HEAD + DNS_NAME + 5)

/* A buffer of the process. */
static __always_inline void one_piece(struct scratch *s, __u64 pointer, __u32 length)
{
	__builtin_memset(s->pieces, 0, sizeof(s->pieces));
	s->pieces[0].at = pointer;
	s->pieces[0].length = length;
}

/* An array of struct iovec of the process, in its own word size: the first of them. */
__noinline int take_pieces(__u64 pointer, __u32 count)
{
	struct scratch *s = scratch();
	__u32 narrow[2 * PIECES] = {};
	int i;

	if (!s)
		return 0;
	__builtin_memset(s->pieces, 0, sizeof(s->pieces));
	if (count > PIECES)
		count = PIECES;
	if (s->call.abi == ABI_NATIVE)
		return bpf_probe_read_user(s->pieces, count * sizeof(s->pieces[0]), (void *)pointer);
	if (bpf_probe_read_user(narrow, count * 8, (void *)pointer))
		return -1;
	for (i = 0; i < PIECES; i++) {
		s->pieces[i].at = narrow[2 * i];
		s->pieces[i].length = narrow[2 * i + 1];
	}
	return 0;
}

/* One byte along the name. */
static long spell_step(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	__u8 byte;

	if (!s)
		return 1;
	byte = s->text[TEXT_AT + 4096 + within(s->spell.at, 511)];
	s->spell.at++;
	if (s->spell.left) {
		s->spell.left--;
	} else {
		if (!byte || byte > 63) {
			s->spell.done = !byte;
			return 1;
		}
		s->spell.left = byte;
		byte = '.';
		if (!s->spell.length)
			return 0;
	}
	s->text[TEXT_AT + within(s->spell.length, 511)] = byte;
	s->spell.length++;
	return 0;
}

/* What a call sends, in the pieces that the process made of it: its first, as far as a DNS name reaches. */
static __always_inline __u32 whole_length(struct scratch *s)
{
	__u32 length = 0;
	int i;

	for (i = 0; i < PIECES; i++)
		length += s->pieces[i].length;
	return length;
}

/* Copy the pieces, joined, to scratch->text[TEXT_AT + 4096]; how many bytes. */
static __always_inline __u32 join_pieces(struct scratch *s)
{
	__u32 at = 0, length;
	int i;

	for (i = 0; i < PIECES; i++) {
		length = s->pieces[i].length > DNS_BYTES - at ? DNS_BYTES - at : s->pieces[i].length;
		if (!length)
			continue;
		if (bpf_probe_read_user(&s->text[TEXT_AT + 4096 + within(at, 511)], within(length, 511),
					(void *)s->pieces[i].at))
			break;
		at += length;
	}
	return at;
}

/* Spell the first name that the query at `at` of the joined pieces asks for; whether there is one. */
static __always_inline bool spelled(struct scratch *s, __u32 at, __u32 length)
{
	__u8 *packet = (__u8 *)&s->text[TEXT_AT + 4096];

	if (length < at + DNS_HEAD + 5)
		return false;
	/* A query (QR 0, opcode 0) that asks something (QDCOUNT > 0). */
	if ((packet[at + 2] & 0xf8) || (!packet[at + 4] && !packet[at + 5]))
		return false;
	s->spell = (struct spell){ .at = at + DNS_HEAD };
	bpf_loop(DNS_NAME + 1, spell_step, NULL, 0);
	return s->spell.done && s->spell.at + 4 <= length; /* its type and class follow */
}

/* The name that the pieces ask for, and its type, as an event after the one in scratch memory. */
__noinline int asked(void)
{
	struct scratch *s = begin(EVENT_DNS, CLASS_NETWORK);
	__u32 at, length;
	__u8 *packet;

	if (!s)
		return 0;
	length = join_pieces(s);
	/* Over TCP the message's length comes first (RFC 1035, 4.2.2), where it was not sent by itself before. */
	if (s->e.protocol != IPPROTO_TCP || !spelled(s, DNS_PREFIX, length))
		if (!spelled(s, 0, length))
			return 0;
	at = within(s->spell.at, 511);
	packet = (__u8 *)&s->text[TEXT_AT + 4096];
	s->e.a0 = packet[at] << 8 | packet[at + 1];
	s->e.a1 = s->e.a2 = 0;
	s->e.path = s->e.path2 = 0;
	s->e.text = intern(s->spell.length, 0, STRING_SAID);
	return finish();
}

/* Whether what this event sends goes to a name server. */
static __always_inline bool to_name_server(struct scratch *s)
{
	return s->e.port == DNS_PORT && (s->e.protocol == IPPROTO_UDP || s->e.protocol == IPPROTO_TCP);
}
