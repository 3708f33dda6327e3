/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Processes: fork, exec, exit, and what follows them: cgroups made, entered and left. */
#pragma once

#include "record.h"

#define ARGV_BYTES 4096
#define ARGV_WORDS 256 /* arguments of a failed exec that are read */
#define CLONE_THREAD_NUMBERS 0
#define NR_FORK 57
#define NR_VFORK 58
#define NR_CLONE 56
#define NR_CLONE3 435
#define NR_I386_CLONE 120
#define CLONE_VM_VFORK 0x4100

/* The flags a clone was called with, read from the parent's registers; SIGCHLD and the like masked out. */
static __always_inline __u64 clone_flags(struct task_struct *parent, __u16 *number, __u8 *abi)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(parent);
	__u64 flags = 0;
	__u32 nr = called(regs);

	*number = nr & 0xfff;
	if (parent->thread_info.status & TS_COMPAT) {
		*abi = ABI_I386;
		if (nr == NR_I386_CLONE)
			return (__u32)regs->bx & ~0xffull;
		if (nr == NR_CLONE3)
			bpf_probe_read_user(&flags, sizeof(flags), (void *)(__u64)(__u32)regs->bx);
		return flags;
	}
	nr &= ~X32_SYSCALL_BIT;
	if (nr == NR_CLONE)
		return regs->di & ~0xffull;
	if (nr == NR_VFORK)
		return CLONE_VM_VFORK;
	if (nr == NR_CLONE3)
		bpf_probe_read_user(&flags, sizeof(flags), (void *)regs->di);
	return flags;
}

/* Followed tasks are also looked for in a cgroup that is nobody's: they left for it. */
static __always_inline bool leave_for(__u64 cgroup, struct slot *slot)
{
	struct scope nobody = {};
	struct scope *scope = bpf_map_lookup_elem(&scopes, &cgroup);

	if (scope)
		return scope->registration != slot->registration;
	if (add_scope(cgroup, &nobody))
		count_loss(slot, CLASS_PROCESS, LOSS_STORAGE);
	return true;
}

static __always_inline void emit_left(struct scratch *s, struct task_struct *task, struct task_state *state,
				      struct slot *slot, __u64 cgroup)
{
	fill_head(s, task, state);
	s->e.kind = EVENT_CGROUP_LEFT;
	s->e.class = CLASS_PRIVILEGE;
	s->e.a0 = cgroup;
	submit(slot, &s->e);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_state *state = followed(parent), *heir, fresh;
	struct scratch *s = scratch();
	struct slot *slot;
	__u64 cgroup;
	bool left;

	if (!state || !s)
		return 0;
	slot = slot_of(state->slot);
	if (!slot)
		return 0;
	fresh = *state;
	fresh.counted = 0;
	heir = begin_to_follow(child, &fresh);
	if (!heir) {
		count_loss(slot, CLASS_PROCESS, LOSS_STORAGE);
		return 0;
	}
	cgroup = cgroup_of(child);
	left = cgroup != state->cgroup && leave_for(cgroup, slot);
	if (cgroup != state->cgroup)
		moved(heir, cgroup);
	if (child->tgid != parent->tgid) {
		fill_head(s, child, heir);
		s->e.kind = EVENT_FORK;
		s->e.class = CLASS_PROCESS;
		s->e.a0 = clone_flags(parent, &s->e.nr, &s->e.abi);
		s->e.result = child->tgid;
		s->e.a1 = own_number(child);
		finish();
	}
	if (left)
		emit_left(s, child, heir, slot, cgroup);
	return 0;
}

/* A followed task stays followed; anyone else becomes so by an exec in an armed sandbox's cgroup. */
static __always_inline struct task_state *follow(struct task_struct *task)
{
	__u64 cgroup = cgroup_of(task);
	struct task_state fresh = {}, *state;
	struct scope *scope;
	struct slot *slot;

	if (!is_near(cgroup) || task->tgid == sensor_tgid)
		return NULL;
	state = followed(task);
	if (state)
		return state;
	scope = bpf_map_lookup_elem(&scopes, &cgroup);
	if (!scope)
		return NULL;
	slot = live_slot(scope->slot, scope->registration);
	if (!slot || !slot->armed)
		return NULL;
	fresh.slot = scope->slot;
	fresh.registration = scope->registration;
	fresh.phase = fresh.origin_phase = slot->declared ? slot->declared : scope->phase;
	fresh.cgroup = cgroup;
	fresh.step = slot->next_step;
	fresh.actor = slot->next_actor;
	state = begin_to_follow(task, &fresh);
	if (!state)
		count_loss(slot, CLASS_PROCESS, LOSS_STORAGE);
	return state;
}

/* The serial of the arguments as they lie in the new program's memory, without the last NUL. */
__noinline int argv_of(__u64 start, __u64 end)
{
	struct scratch *s = scratch();
	__u64 length = end - start;

	if (!s || end <= start)
		return 0;
	if (length > ARGV_BYTES) {
		length = ARGV_BYTES;
		s->e.flags |= FLAG_TEXT_CUT;
	} else {
		length--;
	}
	if (!length)
		return 0;
	if (bpf_probe_read_user(&s->text[TEXT_AT], within(length, 8191), (void *)start)) {
		s->e.flags |= FLAG_PATH_FAULT;
		return 0;
	}
	return intern(length, 0, STRING_ARGV);
}

static __always_inline int kernel_text(struct scratch *s, const char *text)
{
	long length = bpf_probe_read_kernel_str(&s->text[TEXT_AT], PATH_BYTES, text);

	return length > 1 ? intern(length - 1, 0, STRING_SAID) : 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct task_state *state = follow(task);
	struct scratch *s = scratch();
	struct pt_regs *regs;

	if (!state || !s)
		return 0;
	fill_head(s, task, state);
	s->e.kind = EVENT_EXEC;
	s->e.a1 = own_number(task->group_leader);
	s->e.class = CLASS_PROCESS;
	s->exe_stale = 0;
	if (old_pid != task->pid)
		s->e.flags |= FLAG_THREAD;
	object(number_of(s, bprm->file));
	state->exe = s->e.path;
	state->exe_epoch = string_epoch;
	state->abi_seen = 0;
	s->e.exe = s->e.path;
	s->e.path2 = kernel_text(s, bprm->filename);
	s->e.text = argv_of(task->mm->arg_start, task->mm->arg_end);
	s->e.a0 = bprm->argc;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	s->e.nr = called(regs) & 0xfff;
	if (task->thread_info.status & TS_COMPAT)
		s->e.abi = ABI_I386;
	return finish();
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct task_state *state, *first;
	struct scratch *s;
	int code;

	if (!end_of_following(task))
		return 0;
	state = followed(task);
	s = scratch();
	if (!state || !s || task->signal->live.counter)
		return 0;
	/* Two last threads may both see that none lives: the leader's state, when there, lets one speak. */
	first = bpf_task_storage_get(&tasks, task->group_leader, 0, 0);
	if (first && __sync_fetch_and_add(&first->ended, 1))
		return 0;
	fill_head(s, task, state);
	code = task->group_leader->exit_code;
	s->e.kind = EVENT_EXIT;
	s->e.class = CLASS_PROCESS;
	s->e.result = (code >> 8) & 0xff;
	s->e.a0 = code & 0x7f;
	s->exe_stale = 0;
	return finish();
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_attach, struct cgroup *to, const char *path, struct task_struct *task)
{
	struct task_state *state;
	struct scratch *s;
	struct slot *slot;
	__u64 cgroup;

	if (to->root->hierarchy_id)
		return 0;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (!state)
		return 0;
	slot = live_slot(state->slot, state->registration);
	s = scratch();
	cgroup = to->kn->id;
	if (!slot || !s || !leave_for(cgroup, slot))
		return 0;
	fill_head(s, task, state);
	s->exe_stale = 0;
	emit_left(s, task, state, slot, cgroup);
	return 0;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(on_cgroup_mkdir, struct cgroup *made)
{
	struct cgroup *parent;
	struct scope *scope, copy;
	struct slot *slot;
	__u64 id;

	if (made->root->hierarchy_id)
		return 0;
	parent = made->self.parent->cgroup;
	id = parent->kn->id;
	if (!is_near(id))
		return 0;
	scope = bpf_map_lookup_elem(&scopes, &id);
	if (!scope)
		return 0;
	copy = *scope;
	id = made->kn->id;
	if (!add_scope(id, &copy))
		return 0;
	slot = live_slot(copy.slot, copy.registration);
	if (slot)
		count_loss(slot, CLASS_PROCESS, LOSS_STORAGE);
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_cgroup_rmdir, struct cgroup *gone)
{
	__u64 id = gone->kn->id;

	if (!gone->root->hierarchy_id && is_near(id))
		drop_scope(id);
	return 0;
}

/* Arguments of an exec that failed: pointers in the caller's memory. */
static long gather_step(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	__u64 pointer = 0;
	__u32 at;
	long length;

	if (!s || bpf_probe_read_user(&pointer, s->gather.width == 4 ? 4 : 8,
				      (void *)(s->gather.pointers + i * s->gather.width)))
		return 1;
	if (!pointer)
		return 1;
	at = s->gather.length;
	if (at >= ARGV_BYTES) {
		s->gather.cut = 1;
		return 1;
	}
	length = bpf_probe_read_user_str(&s->text[TEXT_AT + within(at, 8191)], ARGV_BYTES, (void *)pointer);
	if (length <= 0)
		return 1;
	s->gather.length += length;
	s->gather.count++;
	return 0;
}

__noinline int failed_exec(int folder, __u64 path, __u64 argv)
{
	struct scratch *s = begin(EVENT_EXEC, CLASS_PROCESS);
	__u32 length;

	if (!s)
		return 0;
	s->e.path = named(folder, path);
	s->e.path2 = said(path);
	s->gather = (struct gather){ .pointers = argv, .width = s->call.abi == ABI_NATIVE ? 8 : 4 };
	bpf_loop(ARGV_WORDS, gather_step, NULL, 0);
	s->e.a0 = s->gather.count;
	length = s->gather.length;
	if (s->gather.cut || s->gather.count == ARGV_WORDS || length > ARGV_BYTES)
		s->e.flags |= FLAG_TEXT_CUT;
	if (length > ARGV_BYTES)
		length = ARGV_BYTES + 1;
	if (length > 1)
		s->e.text = intern(length - 1, 0, STRING_ARGV);
	return finish();
}

HANDLER(on_execve)
{
	struct scratch *s = scratch();

	return s ? failed_exec(AT_FDCWD, s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_execveat)
{
	struct scratch *s = scratch();

	return s ? failed_exec(s->call.args[0], s->call.args[1], s->call.args[2]) : 0;
}

HANDLER(on_memfd)
{
	struct scratch *s = begin(EVENT_MEMFD, CLASS_PROCESS);

	if (!s)
		return 0;
	if (s->call.result >= 0)
		object(file_at(s->call.result));
	s->e.a0 = s->call.args[1];
	s->e.path2 = said(s->call.args[0]);
	return finish();
}
