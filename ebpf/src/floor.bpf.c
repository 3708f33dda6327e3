/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The kernel's own price of a hook on system calls: an empty program. What the sensor costs is told as a ratio to it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("tp_btf/sys_exit")
int floor_exit(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
