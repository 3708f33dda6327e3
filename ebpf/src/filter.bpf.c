/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What may be spoken to: programs on a parent cgroup, rules by (rule set, address). Every address is looked up
 * as IPv6, so a mapped IPv4 address is the IPv4 address. The longest prefix holds the ordered choices of all
 * rules that cover it, so that the first rule that matches decides, at one look-up whatever their number.
 */
#pragma once

#include <bpf/bpf_endian.h>

#include "network.bpf.c"

#define CHOICES 16
#define IPPROTO_ANY 0
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define SOCK_STREAM 1
#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_ACK 0x10

struct rule_key { __u32 length; __be32 ruleset; __u8 address[16]; };
struct choice { __u16 port_low, port_high; __u8 protocol; __u8 allow; __u16 reserved; __u32 name; };
struct choices { __u32 count; __u32 reserved; struct choice at[CHOICES]; };
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct rule_key);
	__type(value, struct choices);
} rules SEC(".maps");

struct verdict { bool allow; __u32 name; };

static __always_inline bool is_loopback(const __u8 *address)
{
	__u64 high, low;

	__builtin_memcpy(&high, address, 8);
	__builtin_memcpy(&low, address + 8, 8);
	if (high)
		return false;
	/* :: and ::1, ::ffff:127.0.0.0/8 and ::ffff:0.0.0.0, to which the kernel gives the own host's answer */
	if (!low || low == bpf_htonl(1) * (1ull << 32))
		return true;
	if ((__u32)low != bpf_htonl(0xffff))
		return false;
	return address[12] == 127 || !(low >> 32);
}

static __always_inline struct verdict judge(struct net_setting *net, const __u8 *address, __u16 port, __u8 protocol)
{
	struct rule_key key = { .length = 32 + 128, .ruleset = bpf_htonl(net->ruleset) };
	struct verdict verdict = { .allow = net->default_allow };
	struct choices *choices;
	__u32 i;

	if (net->loopback && is_loopback(address)) {
		verdict.allow = true;
		return verdict;
	}
	__builtin_memcpy(key.address, address, 16);
	choices = bpf_map_lookup_elem(&rules, &key);
	if (!choices)
		return verdict;
	for (i = 0; i < CHOICES; i++) {
		struct choice *choice = &choices->at[i];

		if (i >= choices->count)
			break;
		if (port < choice->port_low || port > choice->port_high)
			continue;
		if (choice->protocol != IPPROTO_ANY && choice->protocol != protocol)
			continue;
		verdict.allow = choice->allow;
		verdict.name = choice->name;
		return verdict;
	}
	return verdict;
}

/* Where and in which phase: the scope of a cgroup, and what its sandbox may reach. NULL: nothing is enforced. */
static __always_inline struct slot *enforced(__u64 cgroup, struct scope **scope)
{
	struct slot *slot;

	if (!is_near(cgroup))
		return NULL;
	*scope = bpf_map_lookup_elem(&scopes, &cgroup);
	if (!*scope)
		return NULL;
	slot = live_slot((*scope)->slot, (*scope)->registration);
	return slot && slot->net[(*scope)->phase & 3].enforce ? slot : NULL;
}

/* Tell of a refusal. These programs can be interrupted by others: the event is made on the stack. */
static __always_inline void refuse(struct slot *slot, struct scope *scope, const __u8 *address, __u16 port,
				   __u8 protocol, __u32 name, __u32 hook, bool with_task)
{
	struct event e = {};

	e.time_ns = bpf_ktime_get_boot_ns();
	e.slot = scope->slot;
	e.phase = scope->phase;
	e.kind = EVENT_NET_DENIED;
	e.class = CLASS_NETWORK;
	e.tiers = TIER_CGROUP;
	e.nr = 0xffff;
	e.result = -EPERM;
	e.a0 = hook;
	e.text = name;
	e.port = port;
	e.protocol = protocol;
	__builtin_memcpy(e.address, address, 16);
	e.family = *(__u32 *)&address[8] == bpf_htonl(0xffff) && !*(__u64 *)address ? AF_INET : AF_INET6;
	if (with_task) {
		struct task_struct *task = bpf_get_current_task_btf();
		/* Kernels before 6.2 keep task storage from cgroup programs: then the step is not told. */
		struct task_state *state = direct_reads ? bpf_task_storage_get(&tasks, task, 0, 0) : NULL;

		e.pid = task->tgid;
		e.tid = task->pid;
		e.uid = task->cred->euid.val;
		e.start_ns = task->group_leader->start_boottime;
		e.ppid = task->real_parent->tgid;
		if (state && state->registration == scope->registration) {
			e.step = state->step;
			e.origin_phase = state->origin_phase;
			e.actor = state->actor;
			if (state->exe_epoch == string_epoch)
				e.exe = state->exe;
		}
	}
	submit(slot, &e);
}

static __always_inline int check_call(const __u8 *address, __u16 port, __u8 protocol, __u32 hook)
{
	struct scope *scope = NULL;
	struct slot *slot = enforced(bpf_get_current_cgroup_id(), &scope);
	struct verdict verdict;

	if (!slot || !scope)
		return 1;
	verdict = judge(&slot->net[scope->phase & 3], address, port, protocol);
	if (verdict.allow)
		return 1;
	refuse(slot, scope, address, port, protocol, verdict.name, hook, true);
	return 0;
}

static __always_inline void mapped_v4(__u8 *address, __u32 v4)
{
	__builtin_memset(address, 0, 10);
	address[10] = address[11] = 0xff;
	__builtin_memcpy(address + 12, &v4, 4);
}

static __always_inline int check_v4(struct bpf_sock_addr *ctx, __u32 hook)
{
	__u8 address[16];

	mapped_v4(address, ctx->user_ip4);
	return check_call(address, bpf_ntohs(ctx->user_port), ctx->protocol, hook);
}

static __always_inline int check_v6(struct bpf_sock_addr *ctx, __u32 hook)
{
	__u32 address[4];

	address[0] = ctx->user_ip6[0];
	address[1] = ctx->user_ip6[1];
	address[2] = ctx->user_ip6[2];
	address[3] = ctx->user_ip6[3];
	return check_call((__u8 *)address, bpf_ntohs(ctx->user_port), ctx->protocol, hook);
}

SEC("cgroup/connect4")
int filter_connect4(struct bpf_sock_addr *ctx)
{
	return check_v4(ctx, HOOK_CONNECT);
}

SEC("cgroup/connect6")
int filter_connect6(struct bpf_sock_addr *ctx)
{
	return check_v6(ctx, HOOK_CONNECT);
}

SEC("cgroup/sendmsg4")
int filter_sendmsg4(struct bpf_sock_addr *ctx)
{
	return check_v4(ctx, HOOK_SENDMSG);
}

SEC("cgroup/sendmsg6")
int filter_sendmsg6(struct bpf_sock_addr *ctx)
{
	return check_v6(ctx, HOOK_SENDMSG);
}

/* Raw sockets make packets that no connect announces: refused wherever rules are enforced. */
SEC("cgroup/sock_create")
int filter_socket(struct bpf_sock *ctx)
{
	struct scope *scope = NULL;
	__u8 nowhere[16] = {};
	struct slot *slot;

	if (ctx->type != SOCK_RAW)
		return 1;
	slot = enforced(bpf_get_current_cgroup_id(), &scope);
	if (!slot || !scope || slot->net[scope->phase & 3].default_allow)
		return 1;
	refuse(slot, scope, nowhere, 0, ctx->protocol, 0, HOOK_SOCK_CREATE, true);
	return 0;
}

/* `icmp`: the type of an ICMPv6 message. */
struct packet { __u8 address[16]; __u16 port; __u8 protocol; __u8 flags; __u8 icmp; };

/* Options for every hop stand in front of what the packet is (RFC 8200, 4.3). */
static __always_inline void pass_hop_options(struct __sk_buff *skb, struct packet *packet, __u32 *head)
{
	__u8 options[2];

	if (packet->protocol != IPPROTO_HOPOPTS || bpf_skb_load_bytes(skb, *head, options, 2))
		return;
	packet->protocol = options[0];
	*head += 8 + options[1] * 8;
}

static __always_inline bool read_packet(struct __sk_buff *skb, struct packet *packet)
{
	__u32 head = 40, v4;
	__be16 port = 0;
	__u8 byte;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, &byte, 1) || bpf_skb_load_bytes(skb, 9, &packet->protocol, 1) ||
		    bpf_skb_load_bytes(skb, 16, &v4, 4))
			return false;
		mapped_v4(packet->address, v4);
		head = (byte & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 6, &packet->protocol, 1) ||
		    bpf_skb_load_bytes(skb, 24, packet->address, 16))
			return false;
		pass_hop_options(skb, packet, &head);
		if (packet->protocol == IPPROTO_ICMPV6)
			bpf_skb_load_bytes(skb, head, &packet->icmp, 1);
	} else {
		return false;
	}
	if (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP) {
		bpf_skb_load_bytes(skb, head + 2, &port, 2);
		packet->port = bpf_ntohs(port);
	}
	if (packet->protocol == IPPROTO_TCP)
		bpf_skb_load_bytes(skb, head + 13, &packet->flags, 1);
	return true;
}

/* Neighbour discovery (RFC 4861) and multicast listening (RFC 2710, RFC 3810) are the link's own business: the
 * kernel sends these at times of its own, from sockets that count as those of whoever made the network. */
static __always_inline bool is_link_business(const struct packet *packet)
{
	if (packet->protocol != IPPROTO_ICMPV6)
		return false;
	if (packet->icmp >= 133 && packet->icmp <= 137)
		return true;
	return ((packet->icmp >= 130 && packet->icmp <= 132) || packet->icmp == 143) && packet->address[0] == 0xff;
}

/* Packets: what no call announced (TCP fast open, io_uring, raw sockets), and answers to nobody. */
SEC("cgroup_skb/egress")
int filter_egress(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct scope *scope = NULL;
	struct verdict verdict;
	struct bpf_sock *sk;
	struct slot *slot;

	slot = enforced(bpf_skb_cgroup_id(skb), &scope);
	if (!slot || !scope || !read_packet(skb, &packet))
		return 1;
	/* Within a vetted or accepted TCP connection only its first packet is judged. */
	if (packet.protocol == IPPROTO_TCP && (packet.flags & (TCP_FLAG_SYN | TCP_FLAG_ACK)) != TCP_FLAG_SYN) {
		sk = skb->sk;
		if (sk)
			sk = bpf_sk_fullsock(sk);
		if (!sk || sk->type == SOCK_STREAM)
			return 1;
	}
	verdict = judge(&slot->net[scope->phase & 3], packet.address, packet.port, packet.protocol);
	if (verdict.allow || is_link_business(&packet))
		return 1;
	refuse(slot, scope, packet.address, packet.port, packet.protocol, verdict.name, HOOK_EGRESS, false);
	return 0;
}
