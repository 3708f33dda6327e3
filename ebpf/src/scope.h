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

/*
 * The place of a task's saved registers, at the top of its kernel stack for as long as it lives, as a bucket. The
 * system call hook is handed that place: who is nobody's is told from it by one load and without a call.
 */
static __always_inline __u32 bucket_of(const void *registers)
{
	__u32 low;

	/* The lower half of a pointer is a number to the verifier, the whole is none. */
	asm volatile("%0 = %1" : "=w"(low) : "w"((__u32)(__u64)registers));
	return low >> STACK_SHIFT & (STACKS - 1);
}

static __always_inline bool is_nobodys(const struct pt_regs *regs)
{
	return !stacks[bucket_of(regs)];
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

static __always_inline void count_stack(struct task_struct *task, int by)
{
	__sync_fetch_and_add(&stacks[bucket_of((void *)bpf_task_pt_regs(task))], by);
}

/*
 * Follow a task as `fresh` says, if it is not followed for that registration already; NULL: no memory for it. Its stack
 * counts once, until its end: a count too low would be a blind spot.
 */
static __always_inline struct task_state *begin_to_follow(struct task_struct *task, struct task_state *fresh)
{
	struct task_state *state = bpf_task_storage_get(&tasks, task, fresh, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!state)
		return NULL;
	if (state->registration != fresh->registration) {
		fresh->counted = state->counted;
		*state = *fresh;
	}
	if (!__sync_lock_test_and_set(&state->counted, 1))
		count_stack(task, 1);
	return state;
}

/* A task ends: its state, or NULL where it was never followed. */
static __always_inline struct task_state *end_of_following(struct task_struct *task)
{
	struct task_state *state;

	if (is_nobodys((void *)bpf_task_pt_regs(task)))
		return NULL;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (state && __sync_lock_test_and_set(&state->counted, 0))
		count_stack(task, -1);
	return state;
}
