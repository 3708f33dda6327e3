/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Strings go to user space once. A string is known by a SipHash-1-3 of 128 bits (Aumasson and Bernstein, 2012)
 * under a key drawn when the sensor was opened, so that an agent cannot make two paths go by one name. The
 * hash covers whose it is, its role and its device: a serial stands for one string in one place.
 */
#pragma once

#include "loss.h"

#define rotate(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define sip_round(v0, v1, v2, v3)                                                                      \
	do {                                                                                           \
		v0 += v1; v1 = rotate(v1, 13); v1 ^= v0; v0 = rotate(v0, 32);                          \
		v2 += v3; v3 = rotate(v3, 16); v3 ^= v2;                                               \
		v0 += v3; v3 = rotate(v3, 21); v3 ^= v0;                                               \
		v2 += v1; v1 = rotate(v1, 17); v1 ^= v2; v2 = rotate(v2, 32);                          \
	} while (0)

#ifdef __bpf__

#define INTERN_MAX 131072

struct interned { __u32 serial; __u32 epoch; };
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, INTERN_MAX);
	__type(key, __u64[2]);
	__type(value, struct interned);
} known SEC(".maps");

#define STRIDE 32 /* bytes hashed a step */

static long hash_step(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	__u64 v0, v1, v2, v3, *word;
	int j;

	if (!s)
		return 1;
	v0 = s->sip[0], v1 = s->sip[1], v2 = s->sip[2], v3 = s->sip[3];
	word = (__u64 *)&s->text[within(i * STRIDE, 16383 - (STRIDE - 1))];
#pragma unroll
	for (j = 0; j < STRIDE / 8; j++) {
		v3 ^= word[j];
		sip_round(v0, v1, v2, v3);
		v0 ^= word[j];
	}
	s->sip[0] = v0, s->sip[1] = v1, s->sip[2] = v2, s->sip[3] = v3;
	return 0;
}

/* Hash scratch->text up to TEXT_AT+length, filled up with zeros to whole strides; its head tells the length. */
static __always_inline int hash_text(__u32 length)
{
	struct scratch *s = scratch();
	__u64 v0, v1, v2, v3, *end;

	if (!s)
		return 0;
	if (length > TEXT_MAX)
		length = TEXT_MAX;
	end = (__u64 *)&s->text[TEXT_AT + within(length, 16383)];
	end[0] = end[1] = end[2] = end[3] = 0;
	s->sip[0] = hash_key[0] ^ 0x736f6d6570736575ull;
	s->sip[1] = hash_key[1] ^ 0x646f72616e646f6dull ^ 0xee;
	s->sip[2] = hash_key[0] ^ 0x6c7967656e657261ull;
	s->sip[3] = hash_key[1] ^ 0x7465646279746573ull;
	bpf_loop((TEXT_AT + length + STRIDE - 1) / STRIDE, hash_step, NULL, 0);
	v0 = s->sip[0], v1 = s->sip[1], v2 = s->sip[2] ^ 0xee, v3 = s->sip[3];
	sip_round(v0, v1, v2, v3);
	sip_round(v0, v1, v2, v3);
	sip_round(v0, v1, v2, v3);
	s->hash[0] = v0 ^ v1 ^ v2 ^ v3;
	v1 ^= 0xdd;
	sip_round(v0, v1, v2, v3);
	sip_round(v0, v1, v2, v3);
	sip_round(v0, v1, v2, v3);
	s->hash[1] = v0 ^ v1 ^ v2 ^ v3;
	return 0;
}

static __always_inline __u32 next_serial(void)
{
	__u32 serial = (__sync_fetch_and_add(&string_serial, 1) + 1) & 0x7fffffff;

	return serial ?: (__sync_fetch_and_add(&string_serial, 1) + 1) & 0x7fffffff;
}

/* Send the string of scratch->text under a new serial; 0 where it did not fit the sandbox's share. */
static __always_inline __u32 send_text(struct scratch *s, struct slot *slot, __u32 length)
{
	struct string_record *head = (struct string_record *)s->text;
	__u32 bytes = length + TEXT_AT;
	__u64 waiting = bpf_ringbuf_query(&strings, BPF_RB_AVAIL_DATA);
	struct interned entry = {};

	if (bytes > TEXT_AT + TEXT_MAX)
		bytes = TEXT_AT + TEXT_MAX;
	if (slot->string_sent - slot->string_seen + waiting > string_size)
		return 0;
	entry.serial = next_serial();
	entry.epoch = string_epoch;
	head->serial = entry.serial;
	head->length = length;
	head->slot = s->e.slot;
	if (bpf_ringbuf_output(&strings, s->text, bytes, wake_if_filling(waiting, string_size)))
		return 0;
	__sync_fetch_and_add(&slot->string_sent, bytes);
	/* Only now may others use the serial: its bytes are in the ring before any event that names it. */
	bpf_map_update_elem(&known, s->hash, &entry, BPF_ANY);
	return entry.serial;
}

/* The serial of scratch->text[TEXT_AT .. TEXT_AT+length]; 0, flag and count where it could not be sent. */
__noinline int intern(__u32 length, __u32 dev, __u32 role)
{
	struct scratch *s = scratch();
	struct string_record *head;
	struct interned *entry;
	struct slot *slot;
	__u32 serial;

	if (!s)
		return 0;
	slot = slot_of(s->e.slot);
	if (!slot)
		return 0;
	head = (struct string_record *)s->text;
	head->serial = slot->registration;
	head->length = length;
	head->slot = 0;
	head->dev = dev;
	head->role = role;
	hash_text(length);
	entry = bpf_map_lookup_elem(&known, s->hash);
	if (entry && entry->epoch == string_epoch)
		return entry->serial;
	serial = send_text(s, slot, length & 16383);
	if (!serial) {
		s->e.flags |= FLAG_STRING_LOST;
		count_loss(slot, s->e.class, LOSS_STRING);
	}
	return serial;
}

#endif
