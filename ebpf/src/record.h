/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* An event from its head (who, when, where) to its submission. */
#pragma once

#include "path.h"
#include "scope.h"

/* Who did it: `task`, followed with `state`. */
static __always_inline void fill_head(struct scratch *s, struct task_struct *task, struct task_state *state)
{
	struct task_struct *leader = task->group_leader;
	struct task_struct *parent = task->real_parent;
	struct event *e = &s->e;

	__builtin_memset(e, 0, sizeof(*e));
	e->time_ns = bpf_ktime_get_boot_ns();
	e->start_ns = leader->start_boottime;
	e->parent_start_ns = parent->group_leader->start_boottime;
	e->slot = state->slot;
	e->pid = task->tgid;
	e->tid = task->pid;
	e->ppid = parent->tgid;
	e->uid = task->cred->euid.val;
	e->step = state->step;
	e->phase = state->phase;
	e->origin_phase = state->origin_phase;
	e->actor = state->actor;
	e->tiers = TIER_TRACEPOINT;
	e->nr = 0xffff;
	if (e->pid != e->tid)
		e->flags = FLAG_THREAD;
	s->exe_stale = state->exe_epoch != string_epoch;
	e->exe = s->exe_stale ? 0 : state->exe;
}

/* The task's number in its own pid namespace, by which its neighbours call it. */
static __always_inline __u32 own_number(struct task_struct *task)
{
	/* Read, not followed: Linux 6.1 refuses arithmetic with a number of any size on a pointer that it knows. */
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u32 level, number = 0;
	__u64 at;

	if (!pid)
		return 0;
	level = BPF_CORE_READ(pid, level);
	at = (__u64)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);
	bpf_probe_read_kernel(&number, sizeof(number), (void *)at);
	return number;
}

/* The executable was sent before user space forgot old strings: send it again. */
static __always_inline int refresh_exe(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *state = bpf_task_storage_get(&tasks, task, 0, 0);
	struct scratch *s = scratch();
	__u32 flags;
	struct file *file;

	if (!s || !state || !task->mm)
		return 0;
	flags = s->e.flags;
	file = task->mm->exe_file;
	state->exe = path_of(number_of(s, file->f_path.dentry));
	state->exe_epoch = string_epoch;
	s->e.flags = flags | (s->e.flags & FLAG_STRING_LOST);
	s->e.exe = state->exe;
	return 0;
}

/* Submit the event in scratch memory. */
__noinline int finish(void)
{
	struct scratch *s = scratch();
	struct slot *slot;

	if (!s)
		return 0;
	if (s->exe_stale)
		refresh_exe();
	slot = slot_of(s->e.slot);
	return slot ? submit(slot, &s->e) : 0;
}

/* In a handler: the event that dispatch began, now of a kind. */
static __always_inline struct scratch *begin(__u16 kind, __u8 class)
{
	struct scratch *s = scratch();

	if (!s)
		return NULL;
	s->e.kind = kind;
	s->e.class = class;
	return s;
}

/* A handler of one system call's return, reached by tail call from dispatch. */
#define HANDLER(name) SEC("tp_btf/sys_exit") int name(void *ctx)
