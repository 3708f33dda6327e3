/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the kernel programs and user space share: settings, slots, scopes, rings, and scratch memory. */
#pragma once

#include "kernel.h"
#include "event.h"

#define MAX_SLOTS 4096
#define KINDS 136           /* past every kind: each has a counter of its own */
#define NEAR 65536          /* buckets of the cgroup test */
#define STACKS 65536        /* buckets of the stack test */
#define STACK_SHIFT 14      /* kernel stacks are 16 KiB or more, and no two share that much */
#define PHASES 4

_Static_assert(EVENT_POLICY < KINDS, "the newest kind has no counter");

/* The counter of a kind; 0, which is no event's, for what is none. */
static __always_inline __u32 counter_of(__u32 kind)
{
	return kind < KINDS ? kind : 0;
}

/* Why an event or a string did not reach user space. */
enum loss_reason {
	LOSS_RING = 0,     /* the ring was full, or filled by others: the reader was too slow for everybody */
	LOSS_OWN_RATE = 1, /* the sandbox would have filled the ring by itself */
	LOSS_STRING = 2,   /* the event came, one of its strings did not */
	LOSS_STORAGE = 3,  /* the kernel had no memory to follow a process or a cgroup */
	LOSS_REASONS = 4,
};

/* Rule sets of where to and of what to bind; `binds` 0: no rules of that. */
struct net_setting { __u32 ruleset; __u32 binds; __u8 enforce; __u8 default_allow; __u8 loopback; __u8 default_bind; };

/* Bytes counted in the kernel and sent as one event now and then. */
struct byte_sum { __u64 bytes, writes, total, sent_ns; };

/* Events refused while the reader took one ring's size of a ring. */
struct miss { __u64 turn, count; };

/* One sandbox. User space writes `seen*` and the settings, the kernel everything else. */
struct slot {
	__u64 seq;
	__u64 string_sent;
	__u64 string_seen;
	__u32 registration; /* 0: free; else unique among all sandboxes since the sensor was opened */
	__u32 armed;
	__u32 next_step;
	__u32 next_actor;
	__u32 watches; /* objects whose reads are told */
	__u32 declared; /* the phase of all its processes, whatever their cgroups' is; 0: their cgroups' */
	struct net_setting net[PHASES];
	struct byte_sum output;
	struct byte_sum files;
	__u64 lost[8][LOSS_REASONS];
	struct miss missed[2]; /* of the precious, of the bulk ring */
	__u32 sent[KINDS];
	__u32 seen[KINDS];
};

/* A cgroup that matters. With registration 0 only processes already followed matter in it. */
struct scope { __u32 slot; __u32 registration; __u32 phase; __u32 reserved; };

/* What is known of a followed task. */
struct task_state {
	__u64 cgroup; /* where `phase` was looked up */
	__u32 slot;
	__u32 registration;
	__u32 step;
	__u32 exe; /* serial, valid in `exe_epoch` */
	__u32 exe_epoch;
	__u8 origin_phase;
	__u8 phase;
	__u8 actor;
	__u8 abi_seen;
	__u32 ended;
	__u32 counted; /* its stack is, among `stacks` */
};

/* A system call that returned. */
struct call {
	__u64 args[6];
	__s64 result;
	__u32 nr;
	__u32 abi;
};

/*
 * Loops keep their state in scratch memory: of the stack the verifier would want to know every value.
 */
struct climb { __u64 at; __u64 left; __u32 depth; __u32 done; };       /* from a dentry to its root */
struct spell { __u32 at; __u32 left; __u32 length; __u32 done; };      /* along a DNS name */
struct gather { __u64 pointers; __u32 width, length, count, cut; };    /* over an argument vector */

/* Along a name that a process said (resolve.h): where it is now, the text still to go, what is looked at. */
struct way {
	__u64 dentry, mount, root, root_mount, other, child, hash;
	__u32 at, name, length, last_name, looked, links, state, last, sought, again;
};

#define PIECES 4
struct piece { __u64 at, length; };

#define TEXT_AT 16          /* room for the string_record's head */
#define TEXT_MAX 8192       /* a folder's path, NUL, and what the process said */
struct scratch {
	struct call call;
	struct event e;
	__u64 hash[2];
	__u64 sip[4];
	__u64 number;
	union { struct climb climb; struct spell spell; struct gather gather; };
	struct piece pieces[PIECES]; /* of what is sent */
	struct way way;
	__u32 exe_stale;
	char text[TEXT_AT + 2 * TEXT_MAX + 64] __attribute__((aligned(8)));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct scope);
} scopes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Sizes are set by the loader. */
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 20); } precious SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 20); } bulk SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 20); } strings SEC(".maps");

const volatile __u32 sensor_tgid;
const volatile __u64 precious_size = 1 << 20;
const volatile __u64 bulk_size = 1 << 20;
const volatile __u64 string_size = 1 << 20;
const volatile __u64 hash_key[2];

/* Counted cgroups by the low bits of their id: what is 0 here is nobody's. */
__u32 near[NEAR];
/* Counted followed tasks by where their kernel stacks are: what is 0 here is nobody's. */
__u32 stacks[STACKS];
__u32 string_epoch = 1;
__u32 string_serial;
__u64 unattributed; /* losses that no sandbox can be charged with */

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline struct slot *slot_of(__u32 number)
{
	return bpf_map_lookup_elem(&slots, &number);
}

/* A kernel pointer as a number: what goes through memory is no pointer to the verifier any more. */
static __always_inline __u64 number_of(struct scratch *s, const void *pointer)
{
	*(volatile __u64 *)&s->number = (__u64)pointer;
	return *(volatile __u64 *)&s->number;
}

/* A bound that the compiler cannot prove away and the verifier cannot miss. */
#define within(value, mask)                                                                            \
	({                                                                                             \
		__u64 bounded_ = (value);                                                              \
		asm volatile("%0 &= %1" : "+r"(bounded_) : "i"(mask));                                 \
		bounded_;                                                                              \
	})
