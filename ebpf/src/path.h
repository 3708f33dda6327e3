/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Kernel objects → identity and path. A path is walked from the dentry up to its superblock's root, which no
 * chroot, bind mount or symbolic link can fool; user space maps (device, path) to the path in the sandbox.
 */
#pragma once

#include "intern.h"

#define AT_FDCWD (-100)
#define PATH_BYTES 4096
#define DEPTH_MAX 16384 /* folders deep: beyond, the head of the path is unknown and the path flagged as cut */
#define TRAILS 1024     /* remembered paths a CPU */
#define TRAIL_DEPTH 32

/* A dentry whose path was sent: valid while every name up to the root is what it was. */
struct trail { __u64 dentry; __u64 print; __u32 registration; __u32 epoch; __u32 serial; __u32 cut; };
struct trails { struct trail at[TRAILS]; };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRAILS);
	__type(key, __u32);
	__type(value, struct trail);
} trails SEC(".maps");

const volatile bool remember_trails = true;

static long measure_step(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	struct dentry *at, *parent;

	if (!s)
		return 1;
	at = (struct dentry *)s->climb.at;
	parent = GET(at, d_parent);
	if (number_of(s, parent) == (__u64)at || !parent) {
		s->climb.done = 1;
		return 1;
	}
	s->climb.left += GET(at, d_name.len) + 1;
	s->climb.depth++;
	s->climb.at = number_of(s, parent);
	return 0;
}

static long copy_step(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	const unsigned char *name;
	struct dentry *at;
	__u32 length;

	if (!s)
		return 1;
	at = (struct dentry *)s->climb.at;
	name = GET(at, d_name.name);
	length = GET(at, d_name.len) & 255;
	s->climb.left -= length + 1;
	if (s->climb.left < PATH_BYTES) {
		__u64 to = within(s->climb.left, PATH_BYTES - 1);

		s->text[TEXT_AT + to] = '/';
		bpf_probe_read_kernel(&s->text[TEXT_AT + 1 + to], length, name);
	}
	s->climb.at = number_of(s, GET(at, d_parent));
	return 0;
}

/* A print of every name up to the root, 0 where it is too deep: (address, d_seq, name hash) change with a rename. */
static __always_inline __u64 trail_print(struct scratch *s, struct dentry *dentry)
{
	__u64 print = hash_key[0];
	int i;

	for (i = 0; i < TRAIL_DEPTH; i++) {
		struct dentry *parent = GET(dentry, d_parent);

		if (parent == dentry)
			return print | 1;
		print = (print ^ number_of(s, dentry) ^ ((__u64)GET(dentry, d_seq.seqcount.sequence) << 40)) *
			0x9e3779b97f4a7c15ull;
		print = ((print ^ (print >> 29)) ^ GET(dentry, d_name.hash_len)) * 0xbf58476d1ce4e5b9ull;
		print ^= print >> 32;
		dentry = parent;
	}
	return 0;
}

/* A root is "/"; a file without a folder, as of a memfd, is "/" and its name. */
static __always_inline int root_name(struct scratch *s, struct dentry *dentry)
{
	__u32 length = within(GET(dentry, d_name.len), 255);

	s->text[TEXT_AT] = '/';
	bpf_probe_read_kernel(&s->text[TEXT_AT + 1], length, GET(dentry, d_name.name));
	return length && s->text[TEXT_AT + 1] != '/' ? length + 1 : 1;
}

/* Write the dentry's path to scratch->text[TEXT_AT]; its length, at most PATH_BYTES. */
__noinline int walk(__u64 address)
{
	struct scratch *s = scratch();
	__u64 total;

	if (!s || !address)
		return 0;
	s->climb = (struct climb){ .at = address };
	bpf_loop(DEPTH_MAX, measure_step, NULL, 0);
	if (!s->climb.done)
		s->e.flags |= FLAG_PATH_CUT;
	if (!s->climb.depth)
		return root_name(s, (struct dentry *)address);
	total = s->climb.left;
	s->climb.at = address;
	bpf_loop(s->climb.depth, copy_step, NULL, 0);
	if (total > PATH_BYTES) {
		s->e.flags |= FLAG_PATH_CUT;
		total = PATH_BYTES;
	}
	return total;
}

static __always_inline __u32 device_of(struct dentry *dentry)
{
	struct super_block *sb = GET(dentry, d_sb);

	return GET(sb, s_dev);
}

/* The serial of the dentry's path. */
__noinline int path_of(__u64 address)
{
	struct dentry *dentry = (struct dentry *)address;
	struct scratch *s = scratch();
	struct trail *trail;
	struct slot *slot;
	__u64 print;
	__u32 at, flags;
	int length;

	if (!s || !address)
		return 0;
	slot = slot_of(s->e.slot);
	if (!slot)
		return 0;
	print = remember_trails ? trail_print(s, dentry) : 0;
	at = ((address >> 6) ^ (address >> 16) ^ slot->registration) & (TRAILS - 1);
	trail = bpf_map_lookup_elem(&trails, &at);
	if (!trail)
		return 0;
	if (print && trail->print == print && trail->dentry == address && trail->epoch == string_epoch &&
	    trail->registration == slot->registration) {
		s->e.flags |= trail->cut;
		return trail->serial;
	}
	flags = s->e.flags;
	s->e.flags &= ~FLAG_PATH_CUT;
	length = walk(address);
	trail->serial = intern(length, device_of(dentry), STRING_OBJECT);
	trail->epoch = string_epoch;
	trail->registration = slot->registration;
	trail->dentry = address;
	trail->cut = s->e.flags & FLAG_PATH_CUT;
	trail->print = trail->serial ? print : 0;
	s->e.flags |= flags;
	return trail->serial;
}

/* Read a string of the process, of at most `bytes` with its NUL, behind scratch->text[TEXT_AT + at]; its length, or -1
 * and the flag. */
static __always_inline int read_said(struct scratch *s, __u32 at, __u64 pointer, __u32 bytes)
{
	long length;

	if (bytes > PATH_BYTES)
		bytes = PATH_BYTES;
	length = bpf_probe_read_user_str(&s->text[TEXT_AT + within(at, 8191)], bytes, (void *)pointer);
	if (length <= 0) {
		s->e.flags |= FLAG_PATH_FAULT;
		return -1;
	}
	if (length == PATH_BYTES)
		s->e.flags |= FLAG_PATH_CUT;
	return length - 1;
}

/* The serial of what the process said in at most so many bytes, untouched. */
__noinline int said_in(__u64 pointer, __u32 bytes)
{
	struct scratch *s = scratch();
	int length;

	if (!s || !pointer)
		return 0;
	length = read_said(s, 0, pointer, bytes);
	return length > 0 ? intern(length, 0, STRING_SAID) : 0;
}

/* The serial of what the process said, untouched. */
static __always_inline int said(__u64 pointer)
{
	return said_in(pointer, PATH_BYTES);
}

static __always_inline struct file *file_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = task->files->fdt;
	struct file *file = NULL;
	struct file **files;

	if (fd >= table->max_fds)
		return NULL;
	files = table->fd;
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return file;
}

/* The open file behind a descriptor of the current process, as a number; 0: none. */
__noinline __u64 file_at(__u32 fd)
{
	return (__u64)file_of(bpf_get_current_task_btf(), fd);
}

/* The serial of an absolute path made of what the process said in at most so many bytes and the folder it begins in. */
__noinline int named_in(int folder, __u64 pointer, __u32 bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct scratch *s = scratch();
	struct dentry *base;
	int length, more;
	char first = 0;

	if (!s)
		return 0;
	s->e.flags |= FLAG_PATH_USER;
	if (!pointer || bpf_probe_read_user(&first, 1, (void *)pointer)) {
		s->e.flags |= FLAG_PATH_FAULT;
		return 0;
	}
	if (first == '/') {
		base = task->fs->root.dentry;
	} else if (folder == AT_FDCWD) {
		base = task->fs->pwd.dentry;
	} else {
		struct file *file = file_of(task, folder);

		if (!file) {
			s->e.flags |= FLAG_PATH_FAULT;
			return said_in(pointer, bytes);
		}
		base = GET(file, f_path.dentry);
	}
	length = walk(number_of(s, base));
	if (length < 0 || length > PATH_BYTES)
		return 0;
	s->text[TEXT_AT + within(length, 8191)] = 0;
	more = read_said(s, length + 1, pointer, bytes);
	if (more < 0)
		return 0;
	return intern(length + 1 + more, device_of(base), STRING_JOINED);
}

/* The same of a path, which ends with its NUL. */
static __always_inline int named(int folder, __u64 pointer)
{
	return named_in(folder, pointer, PATH_BYTES);
}

static __always_inline __u32 object_flags(struct file *file, struct inode *inode, __u32 mode)
{
	struct dentry *dentry = GET(file, f_path.dentry);
	__u32 flags = 0;

	if ((mode & 0170000) == 0100000 && (mode & 0111))
		flags |= FLAG_EXECUTABLE;
	if ((mode & 0170000) == 0100000 && !GET(inode, i_nlink)) {
		struct super_block *sb = GET(inode, i_sb);

		flags |= FLAG_DELETED;
		if (GET(sb, s_magic) == TMPFS_MAGIC)
			flags |= FLAG_MEMFD;
	} else if (!GET(dentry, d_hash.pprev) && GET(dentry, d_parent) != dentry &&
		   (mode & 0170000) != 0010000 && (mode & 0170000) != 0140000) {
		flags |= FLAG_DELETED;
	}
	return flags;
}

/* Who an object is, and the serial of its path. */
struct identity { __u64 ino; __u32 dev, gen, path; };

static __always_inline struct identity identify(struct scratch *s, struct inode *inode, struct dentry *dentry)
{
	struct super_block *sb = GET(inode, i_sb);

	return (struct identity){
		.ino = GET(inode, i_ino),
		.gen = GET(inode, i_generation),
		.dev = GET(sb, s_dev),
		.path = path_of(number_of(s, dentry)),
	};
}

/* An inode and one of its names as the event's object. */
static __always_inline void take_object(struct scratch *s, struct inode *inode, struct dentry *dentry)
{
	struct identity known = identify(s, inode, dentry);

	s->e.ino = known.ino;
	s->e.dev = known.dev;
	s->e.gen = known.gen;
	s->e.path = known.path;
	s->e.mode = GET(inode, i_mode);
	s->e.owner = GET(inode, i_uid.val);
}

/* An open file as the event's object. */
__noinline int object(__u64 address)
{
	struct file *file = (struct file *)address;
	struct scratch *s = scratch();
	struct inode *inode;

	if (!s || !address)
		return 0;
	inode = GET(file, f_inode);
	take_object(s, inode, GET(file, f_path.dentry));
	s->e.size = GET(inode, i_size);
	s->e.flags |= object_flags(file, inode, s->e.mode);
	return 0;
}

/* An open file as the event's second object. */
__noinline int object2(__u64 address)
{
	struct file *file = (struct file *)address;
	struct scratch *s = scratch();
	struct identity known;

	if (!s || !address)
		return 0;
	known = identify(s, GET(file, f_inode), GET(file, f_path.dentry));
	s->e.ino2 = known.ino;
	s->e.dev2 = known.dev;
	s->e.gen2 = known.gen;
	s->e.path2 = known.path;
	return 0;
}
