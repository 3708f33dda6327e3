/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The sensor: one object, made of one file a subject. */
#include "dispatch.bpf.c"
#include "process.bpf.c"
#include "adopt.bpf.c"
#include "file.bpf.c"
#include "output.bpf.c"
#include "extents.bpf.c"
#include "names.bpf.c"
#include "network.bpf.c"
#include "streams.bpf.c"
#include "privilege.bpf.c"
#include "uring.bpf.c"
#include "filter.bpf.c"
#include "bind.bpf.c"
#include "control.bpf.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
/* Kept in the object so that the loader can compare their layout with what user space takes them for. */
struct event layout_event SEC(".layout");
struct string_record layout_string_record SEC(".layout");
