/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Whose events. A cgroup is registered for a slot and a phase; a task is followed from its first exec in such
 * a cgroup on, with all its descendants, wherever they go. The order of the tests is the order of their cost.
 */
#pragma once

#include "maps.h"

static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

static __always_inline bool is_near(__u64 cgroup)
{
	return near[cgroup & (NEAR - 1)] != 0;
}

static __always_inline int add_scope(__u64 cgroup, const struct scope *scope)
{
	int error = bpf_map_update_elem(&scopes, &cgroup, scope, BPF_NOEXIST);

	if (!error)
		__sync_fetch_and_add(&near[cgroup & (NEAR - 1)], 1);
	return error;
}

static __always_inline void drop_scope(__u64 cgroup)
{
	if (!bpf_map_delete_elem(&scopes, &cgroup))
		__sync_fetch_and_add(&near[cgroup & (NEAR - 1)], -1);
}

/* The slot that a registration still holds. */
static __always_inline struct slot *live_slot(__u32 number, __u32 registration)
{
	struct slot *slot = slot_of(number);

	return slot && registration && slot->registration == registration ? slot : NULL;
}

/* A followed task came to another cgroup: its phase is that cgroup's; outside it keeps its last one. */
static __always_inline void moved(struct task_state *state, __u64 cgroup)
{
	struct scope *scope = bpf_map_lookup_elem(&scopes, &cgroup);

	if (scope && scope->registration == state->registration)
		state->phase = scope->phase;
	state->cgroup = cgroup;
}

/*
 * User space says which phase it is. Who was there before any was declared began in the first that is; but not
 * in verify, where whose it is decides, and is not known.
 */
static __always_inline void declared(struct task_state *state, __u32 phase)
{
	state->phase = phase;
	if (!state->origin_phase && phase != PHASE_VERIFY)
		state->origin_phase = phase;
}

/* The current task's state, or NULL where nobody follows it. */
static __always_inline struct task_state *followed(struct task_struct *task)
{
	__u64 cgroup = cgroup_of(task);
	struct task_state *state;
	struct slot *slot;

	if (!is_near(cgroup))
		return NULL;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (!state)
		return NULL;
	slot = live_slot(state->slot, state->registration);
	if (!slot || task->tgid == sensor_tgid)
		return NULL;
	if (state->cgroup != cgroup)
		moved(state, cgroup);
	if (slot->declared)
		declared(state, slot->declared);
	return state;
}
