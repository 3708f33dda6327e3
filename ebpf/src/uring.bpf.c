/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What was submitted to an io_uring: no system call stands for it, and what came of it is not known. Told are
 * the operation, how often the process submitted it, and whom or what it named.
 */
#pragma once

#include "network.bpf.c"

/* enum io_uring_op (linux/io_uring.h) */
#define OP_CONNECT 16
#define OP_OPENAT 18
#define OP_OPENAT2 28
#define OP_RENAMEAT 35
#define OP_UNLINKAT 36

/* How often a process submitted an operation. */
struct submitter { __u64 start_ns; __u32 pid, opcode; };
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct submitter);
	__type(value, __u64);
} submitted SEC(".maps");

static __always_inline __u64 count_submitted(struct task_struct *task, __u32 opcode)
{
	struct submitter key = { task->group_leader->start_boottime, task->tgid, opcode };
	__u64 one = 1, *count = bpf_map_lookup_elem(&submitted, &key);

	if (count)
		return __sync_add_and_fetch(count, 1);
	bpf_map_update_elem(&submitted, &key, &one, BPF_ANY);
	return one;
}

/* The serial of a name that the kernel copied from the process. */
static __always_inline int taken_name(struct scratch *s, struct filename *name)
{
	long length;

	/* Errors stand in for pointers, and a name may still be to come. */
	if (!name || (__u64)name >= (__u64)-4095)
		return 0;
	length = bpf_probe_read_kernel_str(&s->text[TEXT_AT], PATH_BYTES, GET(name, name));
	return length > 1 ? intern(length - 1, 0, STRING_SAID) : 0;
}

/* Whom or what the operation names; whether it names anything. */
static __always_inline bool take_named(struct scratch *s, struct io_kiocb *request, __u32 opcode)
{
	if (opcode == OP_CONNECT) {
		struct io_connect *connect = (struct io_connect *)request;

		take_address(s, (__u64)GET(connect, addr), GET(connect, addr_len));
		return true;
	}
	if (opcode == OP_OPENAT || opcode == OP_OPENAT2) {
		s->e.path2 = taken_name(s, GET((struct io_open *)request, filename));
		return true;
	}
	if (opcode == OP_UNLINKAT) {
		s->e.path2 = taken_name(s, GET((struct io_unlink *)request, filename));
		return true;
	}
	if (opcode == OP_RENAMEAT) {
		s->e.path2 = taken_name(s, GET((struct io_rename *)request, newpath));
		s->e.text = taken_name(s, GET((struct io_rename *)request, oldpath));
		return true;
	}
	return false;
}

SEC("tp_btf/io_uring_submit_req")
int BPF_PROG(on_submit, struct io_kiocb *request)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *state;
	struct scratch *s;
	__u32 opcode;
	__u64 count;

	if (!is_near(cgroup_of(task)))
		return 0;
	state = followed(task);
	if (!state) /* the kernel's own thread of a polled ring belongs to the group, but was never forked */
		state = bpf_task_storage_get(&tasks, task->group_leader, 0, 0);
	s = scratch();
	if (!state || !s || !live_slot(state->slot, state->registration))
		return 0;
	opcode = request->opcode;
	count = count_submitted(task, opcode);
	fill_head(s, task, state);
	s->e.kind = EVENT_IO_URING_OP;
	s->e.class = CLASS_PRIVILEGE;
	s->e.a0 = opcode;
	s->e.a1 = count;
	/* What names nothing is told at 1, 2, 4, 8 and so on. */
	if (!take_named(s, request, opcode) && (count & (count - 1)))
		return 0;
	return finish();
}
