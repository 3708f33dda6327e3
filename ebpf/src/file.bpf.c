/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Files: what was opened and changed through a descriptor. An object is told from the kernel's own structures. */
#pragma once

#include "resolve.h"

#define O_WRITES 3 /* O_ACCMODE: anything but O_RDONLY writes */
#define MAP_SHARED_BITS 0x03 /* MAP_SHARED 1, MAP_SHARED_VALIDATE 3 */
#define MAP_ANONYMOUS 0x20

/* Open files whose first write, read or listing was told, by address; forgotten when the address is opened anew. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} touched SEC(".maps");

#define TOUCHED_WRITE 1
#define TOUCHED_LIST 2
#define TOUCHED_READ 4

/* Whether this is the first touch of its sort through the open file. */
static __always_inline bool first_touch(struct file *file, struct inode *inode, __u64 sort)
{
	__u64 key = (__u64)file, mark = sort | GET(inode, i_ino) << 8, *seen;

	seen = bpf_map_lookup_elem(&touched, &key);
	if (seen && (*seen & ~0xffull) == (mark & ~0xffull)) {
		if (*seen & sort)
			return false;
		mark |= *seen & 0xff;
	}
	bpf_map_update_elem(&touched, &key, &mark, BPF_ANY);
	return true;
}

#define ENOENT 2
#define ENOTDIR 20
#define EINVAL 22

/* A name that failed: sought where it was refused, which is seldom; as it was said where nothing, or no link, is there. */
static __always_inline void tried(struct scratch *s, int folder, __u64 path)
{
	bool usual = s->call.result == -ENOENT || s->call.result == -ENOTDIR || s->call.result == -EINVAL;

	s->e.path = located(folder, path, usual ? LAST_SAID : LAST_FOLLOWED);
	take_led_to(s);
}

static __always_inline int opened(__u64 path, int folder, __u64 flags, __u64 mode)
{
	struct scratch *s = begin(EVENT_OPEN, CLASS_FILE);
	struct file *file;
	__u64 key;

	if (!s)
		return 0;
	s->e.a0 = flags;
	s->e.a1 = mode;
	if (s->call.result < 0) {
		tried(s, folder, path);
		s->e.path2 = said(path);
		return finish();
	}
	key = file_at(s->call.result);
	file = (struct file *)key;
	if (!file) {
		s->e.path = named(folder, path);
		s->e.path2 = said(path);
		return finish();
	}
	object(key);
	if (GET(file, f_mode) & FMODE_CREATED)
		s->e.flags |= FLAG_CREATED;
	if ((flags & O_WRITES) || (s->e.mode & S_IFMT) == S_IFDIR)
		bpf_map_delete_elem(&touched, &key);
	s->e.path2 = said(path);
	return finish();
}

#define O_CREAT_TRUNC_WRONLY 01101

HANDLER(on_open)
{
	struct scratch *s = scratch();

	return s ? opened(s->call.args[0], AT_FDCWD, (__u32)s->call.args[1], (__u32)s->call.args[2]) : 0;
}

HANDLER(on_creat)
{
	struct scratch *s = scratch();

	return s ? opened(s->call.args[0], AT_FDCWD, O_CREAT_TRUNC_WRONLY, s->call.args[1]) : 0;
}

HANDLER(on_openat)
{
	struct scratch *s = scratch();

	return s ? opened(s->call.args[1], s->call.args[0], (__u32)s->call.args[2], (__u32)s->call.args[3]) : 0;
}

HANDLER(on_openat2)
{
	struct scratch *s = scratch();
	__u64 how[2] = {};

	if (!s)
		return 0;
	bpf_probe_read_user(how, sizeof(how), (void *)s->call.args[2]);
	return opened(s->call.args[1], s->call.args[0], how[0], how[1]);
}

/* Looking at a path that is not there or not for this process: an attempt. */
__noinline int looked(int folder, __u64 path)
{
	struct scratch *s = begin(EVENT_ACCESS, CLASS_FILE);

	if (!s)
		return 0;
	tried(s, folder, path);
	s->e.path2 = said(path);
	return finish();
}

HANDLER(on_stat)
{
	struct scratch *s = scratch();

	return s ? looked(AT_FDCWD, s->call.args[0]) : 0;
}

HANDLER(on_statat)
{
	struct scratch *s = scratch();

	return s ? looked(s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_getdents)
{
	struct scratch *s = begin(EVENT_GETDENTS, CLASS_FILE);
	struct file *file;

	if (!s)
		return 0;
	file = (struct file *)file_at(s->call.args[0]);
	if (!file || !first_touch(file, GET(file, f_inode), TOUCHED_LIST))
		return 0;
	object((__u64)file);
	return finish();
}

/* One event about the object behind a descriptor. */
__noinline int about_fd(__u32 kind, __u32 fd, __u64 a0, __u64 a1)
{
	struct scratch *s = begin(kind, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	object(file_at(fd));
	return finish();
}

HANDLER(on_ftruncate)
{
	struct scratch *s = scratch();

	return s ? about_fd(EVENT_TRUNCATE, s->call.args[0], s->call.args[1], 0) : 0;
}

HANDLER(on_fallocate)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	return about_fd(EVENT_FALLOCATE, s->call.args[0], s->call.args[1],
			s->call.abi == ABI_I386 ? s->call.args[4] | s->call.args[5] << 32 : s->call.args[3]);
}

HANDLER(on_fchmod)
{
	struct scratch *s = scratch();

	return s ? about_fd(EVENT_CHMOD, s->call.args[0], (__u32)s->call.args[1], 0) : 0;
}

HANDLER(on_fchown)
{
	struct scratch *s = scratch();

	return s ? about_fd(EVENT_CHOWN, s->call.args[0], (__u32)s->call.args[1], (__u32)s->call.args[2]) : 0;
}

HANDLER(on_fsetxattr)
{
	struct scratch *s = begin(EVENT_XATTR, CLASS_FILE);

	if (!s)
		return 0;
	object(file_at(s->call.args[0]));
	s->e.path2 = said(s->call.args[1]);
	return finish();
}

/* A shared mapping of a file open for writing: what mprotect may make of it later counts already. */
__noinline int mapped(__u32 fd, __u64 flags, __u64 protection, __u64 length)
{
	struct scratch *s = begin(EVENT_MMAP_WRITE, CLASS_FILE);
	struct file *file;

	if (!s || !(flags & 1) || (flags & MAP_ANONYMOUS))
		return 0;
	file = (struct file *)file_at(fd);
	if (!file || !(GET(file, f_mode) & FMODE_WRITE))
		return 0;
	s->e.a0 = protection;
	s->e.a1 = length;
	object((__u64)file);
	return finish();
}

HANDLER(on_mmap)
{
	struct scratch *s = scratch();

	return s ? mapped(s->call.args[4], s->call.args[3], s->call.args[2], s->call.args[1]) : 0;
}

HANDLER(on_old_mmap)
{
	struct scratch *s = scratch();
	__u32 args[6] = {};

	if (!s || bpf_probe_read_user(args, sizeof(args), (void *)s->call.args[0]))
		return 0;
	return mapped(args[4], args[3], args[2], args[1]);
}

HANDLER(on_handle_open)
{
	struct scratch *s = begin(EVENT_HANDLE_OPEN, CLASS_PRIVILEGE);

	if (!s)
		return 0;
	s->e.a0 = s->call.args[2];
	if (s->call.result >= 0)
		object(file_at(s->call.result));
	return finish();
}
