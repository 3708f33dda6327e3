/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Calls that reach for more than a task needs: told with their result, refused or not. */
#pragma once

#include "record.h"

#define CLONE_NEWUSER 0x10000000
#define CLONE_NAMESPACES 0x7e020080 /* CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME} */
#define PTRACE_TRACEME 0
#define NR_VM_WRITEV 311
#define NR_I386_VM_WRITEV 348
#define NR_X32_VM_WRITEV 540

__noinline int privileged(__u32 kind, __u64 a0, __u64 a1)
{
	struct scratch *s = begin(kind, CLASS_PRIVILEGE);

	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	return finish();
}

HANDLER(on_ptrace)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_PTRACE, s->call.args[0], (__u32)s->call.args[1]) : 0;
}

HANDLER(on_vm_access)
{
	struct scratch *s = scratch();
	__u32 nr;

	if (!s)
		return 0;
	nr = s->call.nr;
	return privileged(EVENT_VM_ACCESS, nr == NR_VM_WRITEV || nr == NR_I386_VM_WRITEV || nr == NR_X32_VM_WRITEV,
			  (__u32)s->call.args[0]);
}

HANDLER(on_setns)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_SETNS, (__u32)s->call.args[1], (__u32)s->call.args[0]) : 0;
}

HANDLER(on_unshare)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_UNSHARE, (__u32)s->call.args[0], 0) : 0;
}

/* Clones that failed to make a user namespace; those that did are seen at the fork. */
HANDLER(on_clone)
{
	struct scratch *s = scratch();

	if (!s || !(s->call.args[0] & CLONE_NAMESPACES))
		return 0;
	return privileged(EVENT_UNSHARE, s->call.args[0] & ~0xffull, 0);
}

HANDLER(on_clone3)
{
	struct scratch *s = scratch();
	__u64 flags = 0;

	if (!s || bpf_probe_read_user(&flags, sizeof(flags), (void *)s->call.args[0]))
		return 0;
	return flags & CLONE_NAMESPACES ? privileged(EVENT_UNSHARE, flags, 0) : 0;
}

HANDLER(on_bpf)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_BPF, (__u32)s->call.args[0], 0) : 0;
}

HANDLER(on_perf_open)
{
	struct scratch *s = scratch();
	__u32 type = 0;

	if (!s)
		return 0;
	bpf_probe_read_user(&type, sizeof(type), (void *)s->call.args[0]);
	return privileged(EVENT_PERF_OPEN, type, (__u32)s->call.args[1]);
}

HANDLER(on_module)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_MODULE, s->call.nr, s->call.args[1]) : 0;
}

HANDLER(on_finit_module)
{
	struct scratch *s = begin(EVENT_MODULE, CLASS_PRIVILEGE);

	if (!s)
		return 0;
	s->e.a0 = s->call.nr;
	object(file_at(s->call.args[0]));
	return finish();
}

HANDLER(on_keyctl)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_KEYCTL, (__u32)s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_userfaultfd)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_USERFAULTFD, (__u32)s->call.args[0], 0) : 0;
}

HANDLER(on_pidfd_getfd)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_PIDFD_GETFD, (__u32)s->call.args[0], (__u32)s->call.args[1]) : 0;
}

HANDLER(on_io_uring)
{
	struct scratch *s = scratch();

	return s ? privileged(EVENT_IO_URING, (__u32)s->call.args[0], 0) : 0;
}

#define EPERM 1
#define SI_USER_MAX 0 /* siginfo codes up to 0 come from processes (asm-generic/siginfo.h) */
#define SI_TIMER (-2)
#define SI_MESGQ (-3)
#define SI_ASYNCIO (-4)
#define SI_SIGIO (-5)

/* A signal that was refused: its target as the process named it. */
static __always_inline int refused_signal(__u64 target, __u64 number)
{
	struct scratch *s = scratch();

	if (!s || s->call.result != -EPERM)
		return 0;
	return privileged(EVENT_SIGNAL, (__u32)number, (__u32)target);
}

HANDLER(on_kill)
{
	struct scratch *s = scratch();

	return s ? refused_signal(s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_tgkill)
{
	struct scratch *s = scratch();

	return s ? refused_signal(s->call.args[1], s->call.args[2]) : 0;
}

HANDLER(on_pidfd_signal)
{
	struct scratch *s = scratch();

	return s ? refused_signal(s->call.args[0], s->call.args[1]) : 0;
}

/* Whether two followed tasks descend from commands of the same sandbox, phase and actor: one tree. */
static __always_inline bool same_tree(struct task_state *a, struct task_state *b)
{
	return b && a->registration == b->registration && a->origin_phase == b->origin_phase && a->actor == b->actor;
}

/*
 * A signal that one process sent to another outside its tree. Timers and the kernel raise signals in
 * interrupts, where `current` is anyone and scratch memory may be in use: their codes are left out first.
 */
SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int number, struct kernel_siginfo *info, struct task_struct *target, int group, int result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *state, *other;
	struct scratch *s;
	__u64 cgroup;
	int code;

	cgroup = cgroup_of(task);
	if (!is_near(cgroup) || (__u64)info <= 1)
		return 0;
	code = BPF_CORE_READ(info, si_code);
	if (code > SI_USER_MAX || (code <= SI_TIMER && code >= SI_SIGIO))
		return 0;
	state = followed(task);
	if (!state)
		return 0;
	other = bpf_task_storage_get(&tasks, target, 0, 0);
	if (same_tree(state, other))
		return 0;
	s = scratch();
	if (!s)
		return 0;
	fill_head(s, task, state);
	s->e.kind = EVENT_SIGNAL;
	s->e.class = CLASS_PRIVILEGE;
	s->e.a0 = number;
	s->e.a1 = target->tgid;
	s->e.a2 = target->group_leader->start_boottime;
	return finish();
}
