/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Programs that user space runs: what must happen in the kernel because kernel programs do the same. */
#pragma once

#include "output.bpf.c"
#include "scope.h"

#define CGROUPS_AT_ONCE 8

struct registration {
	__u32 slot, registration, count, drop, failed, reserved;
	struct { __u64 cgroup; __u32 phase; __u32 reserved; } at[CGROUPS_AT_ONCE];
};

/*
 * A cgroup that somebody only left for, or whose sandbox is gone, may be taken; one that another watches may
 * not.
 */
static __always_inline int take_scope(__u64 cgroup, const struct scope *scope)
{
	struct scope *there = bpf_map_lookup_elem(&scopes, &cgroup);

	if (!there)
		return add_scope(cgroup, scope);
	if (there->registration != scope->registration && live_slot(there->slot, there->registration))
		return -1;
	*there = *scope;
	return 0;
}

/* One that another has taken stays that one's. */
static __always_inline void leave_scope(__u64 cgroup, const struct scope *scope)
{
	struct scope *there = bpf_map_lookup_elem(&scopes, &cgroup);

	if (there && there->registration == scope->registration)
		drop_scope(cgroup);
}

/* Add or drop the cgroups of a sandbox. */
SEC("syscall")
int control_scope(struct registration *wanted)
{
	struct scope scope = { .slot = wanted->slot, .registration = wanted->registration };
	__u32 count = wanted->count, drop = wanted->drop, failed = 0, i;

#pragma unroll
	for (i = 0; i < CGROUPS_AT_ONCE; i++) {
		__u64 cgroup = wanted->at[i].cgroup;

		scope.phase = wanted->at[i].phase;
		if (i >= count)
			continue;
		if (drop)
			leave_scope(cgroup, &scope);
		else if (take_scope(cgroup, &scope))
			failed++;
	}
	wanted->failed = failed;
	return 0;
}

/* Put a fact of the agent's into a sandbox's record; it takes its number from the same counter. */
SEC("syscall")
int control_emit(struct event *e)
{
	struct event copy = *e;
	struct slot *slot = slot_of(copy.slot);

	if (!slot)
		return -1;
	/* A full ring is no loss here: user space empties it and tries again. */
	if (bpf_ringbuf_query(&precious, BPF_RB_AVAIL_DATA) + 4 * RECORD_BYTES > precious_size)
		return -2;
	copy.time_ns = bpf_ktime_get_boot_ns();
	copy.seq = __sync_fetch_and_add(&slot->seq, 1) + 1;
	if (bpf_ringbuf_output(&precious, &copy, sizeof(copy), BPF_RB_FORCE_WAKEUP)) {
		count_loss(slot, copy.class, LOSS_RING);
		return -3;
	}
	__sync_fetch_and_add(&slot->sent[counter_of(copy.kind)], 1);
	return 0;
}

/* Take what a sum holds: user space sends it as an event of its own. */
struct taken { __u32 slot; __u32 reserved; __u64 output_bytes, output_writes, output_total;
	__u64 file_bytes, file_writes, file_total; };

SEC("syscall")
int control_take(struct taken *taken)
{
	struct slot *slot = slot_of(taken->slot);

	if (!slot)
		return -1;
	taken->output_bytes = __sync_lock_test_and_set(&slot->output.bytes, 0);
	taken->output_writes = __sync_lock_test_and_set(&slot->output.writes, 0);
	taken->output_total = slot->output.total;
	taken->file_bytes = __sync_lock_test_and_set(&slot->files.bytes, 0);
	taken->file_writes = __sync_lock_test_and_set(&slot->files.writes, 0);
	taken->file_total = slot->files.total;
	return 0;
}

/* Of an open file's name: where the kernel keeps it among names, its hash, and the hash as counted here. */
struct placed { __u32 fd, hash, counted, reserved; __u64 place; };

SEC("syscall")
int control_placed(struct placed *placed)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct files_struct *files = GET(task, files);
	struct fdtable *table = GET(files, fdt);
	struct scratch *s = scratch();
	struct road *r = road();
	struct file *file = NULL;
	struct dentry *dentry;

	if (!s || !r)
		return -1;
	bpf_probe_read_kernel(&file, sizeof(file), GET(table, fd) + placed->fd);
	if (!file)
		return -1;
	dentry = GET(file, f_path.dentry);
	bpf_probe_read_kernel_str(r->text, NAME_WORDS * 8, GET(dentry, d_name.name));
	s->way.dentry = number_of(s, GET(dentry, d_parent));
	measure_name(s, r, 0);
	placed->hash = GET(dentry, d_name.hash);
	placed->counted = s->way.hash;
	placed->place = (__u64)GET(dentry, d_hash.pprev);
	return 0;
}
