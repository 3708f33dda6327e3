/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* write and read: the hottest handlers. */
#pragma once

#include "network.bpf.c"
#include "output.bpf.c"

/* Objects whose reads are told: canaries and the like. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct stream);
	__type(value, __u32);
} watched SEC(".maps");

HANDLER(on_write)
{
	struct scratch *s = scratch();
	__u64 file;

	if (!s)
		return 0;
	file = file_at(s->call.args[0]);
	if (wrote(file, s->call.result, true))
		asked_by_write(file);
	return 0;
}

HANDLER(on_read)
{
	struct scratch *s = begin(EVENT_READ, CLASS_FILE);
	struct stream key = {};
	struct super_block *sb;
	struct inode *inode;
	struct slot *slot;
	struct file *file;

	if (!s)
		return 0;
	slot = slot_of(s->e.slot);
	if (!slot || !slot->watches)
		return 0;
	file = (struct file *)file_at(s->call.args[0]);
	if (!file)
		return 0;
	inode = GET(file, f_inode);
	sb = GET(inode, i_sb);
	key.slot = s->e.slot;
	key.dev = GET(sb, s_dev);
	key.ino = GET(inode, i_ino);
	if (!bpf_map_lookup_elem(&watched, &key) || !first_touch(file, inode, TOUCHED_READ))
		return 0;
	s->e.a0 = s->call.result;
	object((__u64)file);
	return finish();
}
