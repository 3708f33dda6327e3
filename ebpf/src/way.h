/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The way that a name says: its text, and the names on it looked up in the kernel's name cache, as the kernel does. */
#pragma once

#include "record.h"

#define ROAD_HALF 8192      /* two texts of the way still to go: a link's target goes before the rest, into the other */
#define NEIGHBOURS_MAX 8192 /* names looked at one by one in one call: 0.2 ms, in which its CPU does nothing else */

/* How a call takes the last name of its path. */
enum last_name {
	LAST_GONE = 0,     /* it is there no more: its folder tells it */
	LAST_STAYS = 1,    /* it is there, and is meant itself even where it is a link */
	LAST_FOLLOWED = 2, /* where it is a link, what it leads to is meant */
	LAST_COVERED = 3,  /* as followed; where something is mounted there, the place below is meant */
	LAST_SAID = 4,     /* it is not sought: what the process said is the path */
};

#define NAME_WORDS 32
union name { char bytes[8 * NAME_WORDS]; __u64 words[NAME_WORDS]; };
struct road { union name name[2]; char text[2 * ROAD_HALF + PATH_BYTES]; };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct road);
} roads SEC(".maps");

static __always_inline struct road *road(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&roads, &zero);
}

#define AT_ONCE 16 /* names looked at in one step */

enum tread { TREAD_NEXT, TREAD_CHAIN, TREAD_SEARCH, TREAD_CHECK, TREAD_ENTER, TREAD_MOUNTS, TREAD_UP, TREAD_END,
	     TREAD_ABSENT, TREAD_LOST };

/*
 * The kernel's table of names by their hash: its address and how far a hash is shifted to be a place in it. The
 * kernel tells neither; user space finds them out (names.py). 0: not found, a folder's names are searched one by one.
 */
__u64 name_table;
__u32 name_shift;

static __always_inline char road_at(struct road *r, __u32 at)
{
	return r->text[within(at, 2 * ROAD_HALF - 1)];
}

static __always_inline bool ends_name(char c)
{
	return !c || c == '/';
}

/* Whether the child has the name that is `length` bytes of the way, and was not removed. */
static __always_inline bool has_name(struct road *r, struct dentry *child, __u32 at, __u32 length)
{
	__u64 differing = 0;
	int i;

	if (GET(child, d_name.len) != length || !GET(child, d_inode) || !GET(child, d_hash.pprev))
		return false;
	__builtin_memset(r->name, 0, sizeof(r->name));
	if (bpf_probe_read_kernel(r->name[0].bytes, within(length, 255), GET(child, d_name.name)) ||
	    bpf_probe_read_kernel(r->name[1].bytes, within(length, 255), &r->text[within(at, 2 * ROAD_HALF - 1)]))
		return false;
	/* Without a branch: the verifier would follow each of them. */
	for (i = 0; i < NAME_WORDS; i++)
		differing |= r->name[0].words[i] ^ r->name[1].words[i];
	return !differing;
}

#define EACH(byte) (0x0101010101010101ull * (byte))

static __always_inline __u64 word_at(struct road *r, __u32 at)
{
	return *(__u64 *)&r->text[within(at, 2 * ROAD_HALF - 1)];
}

/* Bit 7 of the first byte of the word that is NUL or a slash; 0: none is. */
static __always_inline __u64 end_in(__u64 word)
{
	__u64 slash = word ^ EACH('/'), ends;

	ends = (((word - EACH(1)) & ~word) | ((slash - EACH(1)) & ~slash)) & EACH(0x80);
	return ends & -ends;
}

/* fs/namei.c: HASH_MIX and fold_hash of 64-bit kernels. */
#define HASH_FOLD 0x61c8864680b583ebull
#define turned(x, by) ((x) << (by) | (x) >> (64 - (by)))

/* The name that begins at `at`: its length, and its hash in the folder, as the kernel counts it. */
static __always_inline void measure_name(struct scratch *s, struct road *r, __u32 at)
{
	__u64 x = 0, y = s->way.dentry, word, end = 0;
	int i;

	s->way.length = 0;
	for (i = 0; i < NAME_WORDS && !end; i++) {
		word = word_at(r, at + i * 8);
		end = end_in(word);
		if (end) {
			x ^= word & (end - 1) >> 7;
		} else {
			x ^= word;
			y ^= x;
			x = turned(x, 12) + y;
			y = turned(y, 45) * 9;
			s->way.length += 8;
		}
	}
	for (; end > 0x80; end >>= 8)
		s->way.length++;
	s->way.hash = (y ^ x * HASH_FOLD) * HASH_FOLD >> 32 | (__u64)s->way.length << 32;
}

/* The first name of the chain where the name would be. */
static __always_inline __u64 chain(struct scratch *s)
{
	struct hlist_bl_head *head = (void *)(name_table + ((__u32)s->way.hash >> (name_shift & 31)) * 8);

	return number_of(s, GET(head, first)) & ~1ull; /* bit 0 is the chain's lock */
}

#define DCACHE_OP_HASH 1 /* linux/dcache.h: the file system has a hash of its own */

static __always_inline enum tread begin_search(struct scratch *s, struct dentry *here)
{
	s->way.again = 0;
	if (name_table && !(GET(here, d_flags) & DCACHE_OP_HASH)) {
		s->way.other = chain(s);
		return s->way.sought = TREAD_CHAIN;
	}
	if (!bpf_core_field_exists(((struct dentry *)0)->d_children))
		return TREAD_LOST;
	s->way.other = number_of(s, GET(here, d_children.first));
	return s->way.sought = TREAD_SEARCH;
}

/* Where the next name begins, and what sort it is. */
static __always_inline enum tread next_name(struct scratch *s, struct road *r, struct dentry *here)
{
	__u32 at = s->way.at;
	char c = road_at(r, at);

	if (c == '/') {
		s->way.at = at + 1;
		return TREAD_NEXT;
	}
	if (!c)
		return TREAD_END;
	if (c == '.' && ends_name(road_at(r, at + 1))) {
		s->way.at = at + 1;
		return TREAD_NEXT;
	}
	if (c == '.' && road_at(r, at + 1) == '.' && ends_name(road_at(r, at + 2))) {
		s->way.at = at + 2;
		return TREAD_UP;
	}
	s->way.name = at;
	measure_name(s, r, at);
	if (s->way.last == LAST_GONE && at >= s->way.last_name)
		return TREAD_ABSENT;
	return begin_search(s, here);
}

/*
 * In the chain, the next that has the folder and the hash. A name that moves to another chain while it is looked at
 * leads astray: what is not found is sought once more.
 */
static __always_inline enum tread search_chain(struct scratch *s)
{
	__u64 other = s->way.other;
	struct dentry *child;
	int i;

	for (i = 0; i < AT_ONCE && other; i++) {
		child = (struct dentry *)(other - bpf_core_field_offset(struct dentry, d_hash));
		other = number_of(s, GET(child, d_hash.next));
		if (number_of(s, GET(child, d_parent)) == s->way.dentry && GET(child, d_name.hash_len) == s->way.hash) {
			s->way.child = number_of(s, child);
			s->way.other = other;
			return TREAD_CHECK;
		}
	}
	if (!other && s->way.again++)
		return TREAD_ABSENT;
	s->way.other = other ?: chain(s);
	return TREAD_CHAIN;
}

/* Among the neighbours, the next whose name has the right length. */
static __always_inline enum tread search(struct scratch *s)
{
	__u64 other = s->way.other;
	struct dentry *child;
	int i;

	if (!bpf_core_field_exists(((struct dentry *)0)->d_sib) || s->way.looked >= NEIGHBOURS_MAX)
		return TREAD_ABSENT;
	for (i = 0; i < AT_ONCE; i++) {
		if (!other)
			return TREAD_ABSENT;
		child = (struct dentry *)(other - bpf_core_field_offset(struct dentry, d_sib));
		other = number_of(s, GET(child, d_sib.next));
		s->way.looked++;
		if (GET(child, d_name.len) == s->way.length && GET(child, d_inode)) {
			s->way.child = number_of(s, child);
			s->way.other = other;
			return TREAD_CHECK;
		}
	}
	s->way.other = other;
	return TREAD_SEARCH;
}

/* Whether the child is what is sought; if not, the search goes on. */
static __always_inline enum tread check(struct scratch *s, struct road *r)
{
	struct dentry *child = (struct dentry *)s->way.child;

	if (number_of(s, GET(child, d_parent)) != s->way.dentry || !has_name(r, child, s->way.at, s->way.length))
		return s->way.sought;
	s->way.at += s->way.length;
	s->way.dentry = s->way.child;
	return TREAD_ENTER;
}
