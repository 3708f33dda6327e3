/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Following who was there before: all threads in the cgroups of a sandbox, at one walk over the machine's. */
#pragma once

#include "record.h"

#define PF_EXITING 4

struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; } __attribute__((preserve_access_index));

/* What user space asks for before it reads the walk through, and how many were not followed yet. */
struct adopting { __u32 slot, registration, actor, followed; };
struct adopting adopting;

SEC("iter/task")
int adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_state fresh = {}, *state;
	struct scope *scope;
	struct slot *slot = slot_of(adopting.slot);
	__u64 cgroup;

	if (!task || task->flags & PF_EXITING)
		return 0;
	cgroup = cgroup_of(task);
	if (!is_near(cgroup))
		return 0;
	scope = bpf_map_lookup_elem(&scopes, &cgroup);
	if (!scope || scope->registration != adopting.registration)
		return 0;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (state && state->registration == adopting.registration)
		return 0;
	fresh.slot = adopting.slot;
	fresh.registration = adopting.registration;
	fresh.actor = adopting.actor;
	if (begin_to_follow(task, &fresh))
		adopting.followed++;
	else if (slot)
		count_loss(slot, CLASS_PROCESS, LOSS_STORAGE);
	return 0;
}
