/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One empty program for each sort of hook: what loads and attaches on this machine is found by trying. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

#define EMPTY(section, name, answer)                                                                   \
	SEC(section) int name(void *ctx)                                                               \
	{                                                                                              \
		return answer;                                                                         \
	}

EMPTY("tp/sched/sched_process_exec", tracepoint, 0)
EMPTY("tp_btf/sys_exit", tp_btf, 0)
EMPTY("cgroup/connect4", cgroup_connect, 1)
EMPTY("cgroup_skb/egress", cgroup_skb, 1)
EMPTY("lsm/file_open", lsm, 0)
EMPTY("fentry/do_unlinkat", fentry, 0)
EMPTY("kprobe/do_exit", kprobe, 0)
EMPTY("syscall", control, 0)

SEC("tp_btf/sys_exit")
int ringbuf(void *ctx)
{
	bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
