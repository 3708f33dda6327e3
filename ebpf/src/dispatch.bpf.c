/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The one hook on system calls: at their return, by number, for tasks that are followed.
 *
 * The arguments are still in the registers, the result is known, and one hook costs half of two. A handler
 * takes (abi, number, arguments, result) from scratch memory, so that another hook could feed it.
 */
#pragma once

#include "calls.h"
#include "record.h"

#define NUMBERS 1024
#define WHEN_SHIFT 8

struct entry { __u16 word[3][NUMBERS]; };
static const struct entry calls = {
#define NATIVE(name, when, native, i386) [native] = HANDLER_##name | when << WHEN_SHIFT,
#define I386(name, when, native, i386) [i386] = HANDLER_##name | when << WHEN_SHIFT,
#define X32(name, when, number) [number] = HANDLER_##name | when << WHEN_SHIFT,
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winitializer-overrides"
	.word = {
		[ABI_NATIVE] = { CALLS(NATIVE) [NONE] = 0 },
		[ABI_I386] = { CALLS(I386) [NONE] = 0 },
		[ABI_X32] = { CALLS(NATIVE) X32_CALLS(X32) [NONE] = 0 },
	},
#pragma clang diagnostic pop
};

#define DECLARE(name) int on_##name(void *ctx);
HANDLERS(DECLARE)

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, HANDLER_COUNT);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} handlers SEC(".maps") = {
	.values = {
#define SLOT_OF(name) [HANDLER_##name] = (void *)&on_##name,
		HANDLERS(SLOT_OF)
	},
};

static __always_inline bool wanted(__u32 when, long result)
{
	switch (when) {
	case FAILED: return result < 0;
	case DONE: return result >= 0 || result < -4095;
	case MOVED: return result > 0;
	}
	return true;
}

static __always_inline void take_arguments(struct call *call, struct pt_regs *regs, __u32 abi)
{
	if (abi == ABI_I386) {
		call->args[0] = (__u32)regs->bx;
		call->args[1] = (__u32)regs->cx;
		call->args[2] = (__u32)regs->dx;
		call->args[3] = (__u32)regs->si;
		call->args[4] = (__u32)regs->di;
		call->args[5] = (__u32)regs->bp;
	} else {
		call->args[0] = regs->di;
		call->args[1] = regs->si;
		call->args[2] = regs->dx;
		call->args[3] = regs->r10;
		call->args[4] = regs->r8;
		call->args[5] = regs->r9;
	}
}

/* The call that returned, into scratch memory; the handler that is to see it, 0 for none. */
static __noinline __u32 take_call(struct task_struct *task, struct pt_regs *regs, long result)
{
	__u32 number = called(regs);
	struct task_state *state;
	__u32 abi = ABI_NATIVE;
	struct scratch *s;
	__u32 word, handler;

	if (task->thread_info.status & TS_COMPAT) {
		abi = ABI_I386;
	} else if ((number & ~(NUMBERS - 1)) == X32_SYSCALL_BIT) {
		abi = ABI_X32;
		number &= NUMBERS - 1;
	}
	word = number < NUMBERS ? calls.word[abi][number & (NUMBERS - 1)] : 0;
	handler = wanted(word >> WHEN_SHIFT, result) ? word & 255 : 0;
	if (!handler && abi == ABI_NATIVE)
		return 0;
	state = followed(task);
	if (!state)
		return 0;
	if (abi != ABI_NATIVE && !(state->abi_seen & (1 << abi)))
		handler = HANDLER_foreign;
	if (!handler)
		return 0;
	s = scratch();
	if (!s)
		return 0;
	take_arguments(&s->call, regs, abi);
	s->call.result = result;
	s->call.nr = number;
	s->call.abi = abi;
	fill_head(s, task, state);
	s->e.result = s->call.result;
	s->e.nr = number;
	s->e.abi = abi;
	return handler;
}

/*
 * What every system call of the machine pays: one load of one word. A call of a helper alone would cost seven times
 * that, where returns are guarded. All else is a function of its own, so that nothing is saved or spilled for it here.
 */
SEC("tp_btf/sys_exit")
int BPF_PROG(dispatch, struct pt_regs *regs, long result)
{
	__u32 handler;

	if (is_nobodys(regs))
		return 0;
	handler = take_call(bpf_get_current_task_btf(), regs, result);
	if (!handler)
		return 0;
	bpf_tail_call(ctx, &handlers, handler);
	__sync_fetch_and_add(&unattributed, 1);
	return 0;
}

/* The first call of a task through another table than the native one; the call itself is handled after it. */
HANDLER(on_foreign)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *state = bpf_task_storage_get(&tasks, task, 0, 0);
	struct scratch *s = begin(EVENT_FOREIGN_ABI, CLASS_PRIVILEGE);
	__u32 abi, number, word;

	if (!s || !state)
		return 0;
	abi = s->call.abi;
	number = s->call.nr;
	state->abi_seen |= 1 << (abi & 3);
	s->e.a0 = number;
	finish();
	if (abi > ABI_X32 || number >= NUMBERS)
		return 0;
	word = calls.word[abi][number];
	if (!(word & 255) || !wanted(word >> WHEN_SHIFT, s->call.result))
		return 0;
	fill_head(s, task, state);
	s->e.result = s->call.result;
	s->e.nr = number;
	s->e.abi = abi;
	bpf_tail_call(ctx, &handlers, word & 255);
	return 0;
}
