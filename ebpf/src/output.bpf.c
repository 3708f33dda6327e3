/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Bytes written: summed by sandbox, recorded streams apart from files; the first write of each open file told. */
#pragma once

#include "file.bpf.c"

#define OUTPUT_PERIOD_NS 100000000ull
#define S_IFIFO 0010000
#define S_IFCHR 0020000
#define S_IFSOCK 0140000
#define S_IFBLK 0060000
#define DEV_TTY 0x00500000 /* 5:0, the process's own terminal */

/* Recorded streams: the pipe's or terminal's inode. */
struct stream { __u32 slot; __u32 dev; __u64 ino; };
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct stream);
	__type(value, __u32);
} streams SEC(".maps");

static __always_inline bool is_recorded(struct scratch *s, struct inode *inode, __u32 mode)
{
	struct super_block *sb = GET(inode, i_sb);
	struct stream stream = { .slot = s->e.slot, .dev = GET(sb, s_dev), .ino = GET(inode, i_ino) };

	if ((mode & S_IFMT) == S_IFCHR && GET(inode, i_rdev) == DEV_TTY) {
		stream.dev = 0;
		stream.ino = DEV_TTY;
	}
	return bpf_map_lookup_elem(&streams, &stream) != NULL;
}

/* Send a sum as an event, and begin the next. */
static __always_inline void send_sum(struct scratch *s, struct slot *slot, struct byte_sum *sum, __u32 kind)
{
	__u64 bytes = sum->bytes, writes = sum->writes;

	s->e.kind = kind;
	s->e.class = CLASS_OUTPUT;
	s->e.a0 = bytes;
	s->e.a1 = writes;
	s->e.a2 = sum->total;
	s->e.path = s->e.path2 = 0;
	s->e.ino = s->e.size = 0;
	s->e.dev = s->e.gen = s->e.mode = s->e.owner = 0;
	s->e.flags = kind == EVENT_OUTPUT ? FLAG_RECORDED_STREAM : 0;
	/* What was not sent stays in the sum. */
	if (!submit(slot, &s->e)) {
		__sync_fetch_and_sub(&sum->bytes, bytes);
		__sync_fetch_and_sub(&sum->writes, writes);
	}
}

static __always_inline bool count_bytes(struct byte_sum *sum, __u64 bytes, __u64 now)
{
	__u64 sent = sum->sent_ns;

	__sync_fetch_and_add(&sum->bytes, bytes);
	__sync_fetch_and_add(&sum->writes, 1);
	__sync_fetch_and_add(&sum->total, bytes);
	return now - sent >= OUTPUT_PERIOD_NS && __sync_val_compare_and_swap(&sum->sent_ns, sent, now) == sent;
}

static __always_inline void tell_first_write(struct scratch *s, struct file *file, struct inode *inode, __u64 bytes)
{
	if (!first_touch(file, inode, TOUCHED_WRITE))
		return;
	s->e.kind = EVENT_WRITE;
	s->e.class = CLASS_FILE;
	s->e.a0 = bytes;
	object((__u64)file);
	finish();
}

/*
 * Bytes went into a file, a device or a recorded stream. `tell`: the first through an open file is an event;
 * not where the call has an event of its own.
 */
__noinline int wrote(__u64 address, __u64 bytes, bool tell)
{
	struct file *file = (struct file *)address;
	struct scratch *s = scratch();
	struct inode *inode;
	struct slot *slot;
	__u32 mode, sort;

	if (!s || !address)
		return 0;
	slot = slot_of(s->e.slot);
	if (!slot)
		return 0;
	inode = GET(file, f_inode);
	mode = GET(inode, i_mode);
	sort = mode & S_IFMT;
	if (sort == S_IFREG) {
		if (tell)
			tell_first_write(s, file, inode, bytes);
		if (count_bytes(&slot->files, bytes, s->e.time_ns))
			send_sum(s, slot, &slot->files, EVENT_FILE_BYTES);
	} else if ((sort == S_IFIFO || sort == S_IFCHR || sort == S_IFSOCK) && is_recorded(s, inode, mode)) {
		if (count_bytes(&slot->output, bytes, s->e.time_ns))
			send_sum(s, slot, &slot->output, EVENT_OUTPUT);
	} else if (tell && (sort == S_IFCHR || sort == S_IFBLK)) {
		tell_first_write(s, file, inode, bytes);
	}
	return sort == S_IFSOCK;
}
