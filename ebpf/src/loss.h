/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Rings, shares of rings, and the count of what was lost.
 *
 * A ring is shared by dynamic thresholds (Choudhury and Hahne, 1998): a queue, here one kind of event of one
 * sandbox, may hold no more than what is still free. One flooding queue gets half of the ring, n of them
 * n/(n+1), and the rest stays free for those that do not flood.
 *
 * An event that is refused was lost by its sandbox's own rate where the ring would have refused it to that
 * sandbox alone: by what it holds of the ring, over all kinds, or because it was refused a whole ring's size
 * while the reader took no more than one. All else is lost because others fill the ring.
 */
#pragma once

#include "maps.h"

#define RECORD_BYTES (8 + sizeof(struct event))
#define WAKE_BYTES (16 * RECORD_BYTES) /* several CPUs may step over the mark at once */

static __always_inline void count_loss(struct slot *slot, __u32 class, enum loss_reason reason)
{
	__sync_fetch_and_add(&slot->lost[class & 7][reason & 3], 1);
}

static __always_inline bool is_bulk(__u32 kind)
{
	switch (kind) {
	case EVENT_OPEN: case EVENT_GETDENTS: case EVENT_ACCESS: case EVENT_READ: case EVENT_WRITE:
	case EVENT_SEND: case EVENT_DNS: case EVENT_NET_DENIED: case EVENT_ACCEPT:
		return true;
	}
	return false;
}

/*
 * The reader comes by itself, and more and more seldom while nothing happens. It is woken where a ring passes an
 * eighth: not by flags of 0, which wake only a reader that has taken everything, nor by every event past it.
 */
static __always_inline __u64 wake_if_filling(__u64 waiting, __u64 size)
{
	return waiting > size / 8 && waiting < size / 8 + WAKE_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Bytes of all kinds that a sandbox holds of the bulk ring, or of the precious one. */
static __always_inline __u64 held_of_ring(struct slot *slot, bool bulky)
{
	__u32 events = 0;

	for (__u32 kind = 0; kind < KINDS; kind++)
		if (is_bulk(kind) == bulky)
			events += slot->sent[kind] - slot->seen[kind];
	return (__u64)events * RECORD_BYTES;
}

/* Bytes refused to a sandbox since the reader began to take the ring's present turn, this event's too. */
static __always_inline __u64 missed_in_turn(void *ring, __u64 size, struct slot *slot, bool bulky)
{
	struct miss *miss = &slot->missed[bulky];
	__u64 turn = bpf_ringbuf_query(ring, BPF_RB_CONS_POS) / size;

	if (miss->turn != turn) {
		miss->turn = turn;
		miss->count = 0;
	}
	return (__sync_fetch_and_add(&miss->count, 1) + 1) * RECORD_BYTES;
}

static __always_inline int put(void *ring, __u64 size, bool bulky, struct slot *slot, struct event *e)
{
	__u32 kind = counter_of(e->kind);
	__u64 held = (__u64)(slot->sent[kind] - slot->seen[kind]) * RECORD_BYTES;
	__u64 waiting = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);

	if (held + waiting > size) {
		bool own = missed_in_turn(ring, size, slot, bulky) > size ||
			   held + held_of_ring(slot, bulky) > size;

		count_loss(slot, e->class, own ? LOSS_OWN_RATE : LOSS_RING);
		return -1;
	}
	__sync_fetch_and_add(&slot->sent[kind], 1); /* first: what waits of a sandbox's is never more than it holds */
	if (bpf_ringbuf_output(ring, e, sizeof(*e), wake_if_filling(waiting, size))) {
		__sync_fetch_and_add(&slot->sent[kind], -1);
		count_loss(slot, e->class, LOSS_RING);
		return -1;
	}
	return 0;
}

/* Give the event its number and send it, or count it as lost. */
static __always_inline int submit(struct slot *slot, struct event *e)
{
	e->seq = __sync_fetch_and_add(&slot->seq, 1) + 1;
	if (is_bulk(e->kind))
		return put(&bulk, bulk_size, true, slot, e);
	return put(&precious, precious_size, false, slot, e);
}
