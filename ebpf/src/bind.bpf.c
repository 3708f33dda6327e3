/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Which own addresses and ports may be taken: rules of their own, judged as those of egress are. A listen without
 * a bind takes a port that the kernel chooses, and no hook stands there: it shows as LISTEN.
 */
#pragma once

#include "filter.bpf.c"

static __always_inline int check_bind(const __u8 *address, __u16 port, __u8 protocol)
{
	struct scope *scope = NULL;
	struct slot *slot = enforced(bpf_get_current_cgroup_id(), &scope);
	struct net_setting own = {}, *net;
	struct verdict verdict;

	if (!slot || !scope)
		return 1;
	net = &slot->net[scope->phase & 3];
	if (net->default_bind && !net->binds)
		return 1;
	own.ruleset = net->binds;
	own.default_allow = net->default_bind;
	verdict = judge(&own, address, port, protocol);
	if (verdict.allow)
		return 1;
	refuse(slot, scope, address, port, protocol, verdict.name, HOOK_BIND, true);
	return 0;
}

SEC("cgroup/bind4")
int filter_bind4(struct bpf_sock_addr *ctx)
{
	__u8 address[16];

	mapped_v4(address, ctx->user_ip4);
	return check_bind(address, bpf_ntohs(ctx->user_port), ctx->protocol);
}

SEC("cgroup/bind6")
int filter_bind6(struct bpf_sock_addr *ctx)
{
	__u32 address[4];

	address[0] = ctx->user_ip6[0];
	address[1] = ctx->user_ip6[1];
	address[2] = ctx->user_ip6[2];
	address[3] = ctx->user_ip6[3];
	return check_bind((__u8 *)address, bpf_ntohs(ctx->user_port), ctx->protocol);
}
