/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Calls that name paths and leave no object at their return. The path is absolute, made of the folder's own
 * path and what the process said (FLAG_PATH_USER).
 */
#pragma once

#include "record.h"

/* One path. */
__noinline int one_name(__u32 kind, int folder, __u64 path, __u64 a0, __u64 a1)
{
	struct scratch *s = begin(kind, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	s->e.path = named(folder, path);
	s->e.path2 = said(path);
	return finish();
}

#define AT_EMPTY_PATH 0x1000

/* A path, or the descriptor itself where the path is empty and the flags allow it. */
static __always_inline int name_or_fd(__u32 kind, int folder, __u64 path, __u64 a0, __u64 a1, __u32 flags)
{
	struct scratch *s;
	char first = 0;

	if (path && ((flags & AT_EMPTY_PATH) == 0 || bpf_probe_read_user(&first, 1, (void *)path) || first))
		return one_name(kind, folder, path, a0, a1);
	s = begin(kind, CLASS_FILE);
	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	object(file_at(folder));
	return finish();
}

/* Two paths, both absolute: from and to. */
__noinline int two_names(__u32 kind, int folder, __u64 path, int folder2, __u64 path2)
{
	struct scratch *s = begin(kind, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = named(folder, path);
	s->e.path2 = named(folder2, path2);
	return finish();
}

HANDLER(on_rename)
{
	struct scratch *s = scratch();

	return s ? two_names(EVENT_RENAME, AT_FDCWD, s->call.args[0], AT_FDCWD, s->call.args[1]) : 0;
}

HANDLER(on_renameat)
{
	struct scratch *s = scratch();

	return s ? two_names(EVENT_RENAME, s->call.args[0], s->call.args[1], s->call.args[2], s->call.args[3])
		 : 0;
}

HANDLER(on_renameat2)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[4];
	return two_names(EVENT_RENAME, s->call.args[0], s->call.args[1], s->call.args[2], s->call.args[3]);
}

HANDLER(on_link)
{
	struct scratch *s = scratch();

	return s ? two_names(EVENT_LINK, AT_FDCWD, s->call.args[0], AT_FDCWD, s->call.args[1]) : 0;
}

HANDLER(on_linkat)
{
	struct scratch *s = begin(EVENT_LINK, CLASS_FILE);
	char first = 0;

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[4];
	if (!(s->call.args[4] & AT_EMPTY_PATH) ||
	    bpf_probe_read_user(&first, 1, (void *)s->call.args[1]) || first)
		return two_names(EVENT_LINK, s->call.args[0], s->call.args[1], s->call.args[2],
				 s->call.args[3]);
	object(file_at(s->call.args[0]));
	s->e.path2 = named(s->call.args[2], s->call.args[3]);
	return finish();
}

/* path = new name, path2 = target text */
__noinline int symlinked(int folder, __u64 name, __u64 target)
{
	struct scratch *s = begin(EVENT_SYMLINK, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = named(folder, name);
	s->e.path2 = said(target);
	return finish();
}

HANDLER(on_symlink)
{
	struct scratch *s = scratch();

	return s ? symlinked(AT_FDCWD, s->call.args[1], s->call.args[0]) : 0;
}

HANDLER(on_symlinkat)
{
	struct scratch *s = scratch();

	return s ? symlinked(s->call.args[1], s->call.args[2], s->call.args[0]) : 0;
}

#define AT_REMOVEDIR 0x200

HANDLER(on_unlink)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_UNLINK, AT_FDCWD, s->call.args[0], 0, 0) : 0;
}

HANDLER(on_rmdir)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_UNLINK, AT_FDCWD, s->call.args[0], AT_REMOVEDIR, 0) : 0;
}

HANDLER(on_unlinkat)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_UNLINK, s->call.args[0], s->call.args[1], (__u32)s->call.args[2], 0) : 0;
}

HANDLER(on_mkdir)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKDIR, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0) : 0;
}

HANDLER(on_mkdirat)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKDIR, s->call.args[0], s->call.args[1], (__u32)s->call.args[2], 0) : 0;
}

HANDLER(on_mknod)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKNOD, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], s->call.args[2]) : 0;
}

HANDLER(on_mknodat)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKNOD, s->call.args[0], s->call.args[1], (__u32)s->call.args[2],
			    s->call.args[3])
		 : 0;
}

HANDLER(on_truncate)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_TRUNCATE, AT_FDCWD, s->call.args[0], s->call.args[1], 0) : 0;
}

HANDLER(on_chmod)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_CHMOD, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0) : 0;
}

#define NR_FCHMODAT2 452

HANDLER(on_fchmodat)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	return name_or_fd(EVENT_CHMOD, s->call.args[0], s->call.args[1], (__u32)s->call.args[2], 0,
			  s->call.nr == NR_FCHMODAT2 ? s->call.args[3] : 0);
}

HANDLER(on_chown)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_CHOWN, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1],
			    (__u32)s->call.args[2])
		 : 0;
}

HANDLER(on_fchownat)
{
	struct scratch *s = scratch();

	return s ? name_or_fd(EVENT_CHOWN, s->call.args[0], s->call.args[1], (__u32)s->call.args[2],
			      (__u32)s->call.args[3], s->call.args[4])
		 : 0;
}

/* path = the file, path2 = the attribute's name */
__noinline int attribute(int folder, __u64 path, __u64 name)
{
	struct scratch *s = begin(EVENT_XATTR, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = named(folder, path);
	s->e.path2 = said(name);
	return finish();
}

HANDLER(on_setxattr)
{
	struct scratch *s = scratch();

	return s ? attribute(AT_FDCWD, s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_setxattrat)
{
	struct scratch *s = scratch();

	return s ? attribute(s->call.args[0], s->call.args[1], s->call.args[3]) : 0;
}

HANDLER(on_utimes)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_UTIMES, AT_FDCWD, s->call.args[0], 0, 0) : 0;
}

HANDLER(on_utimesat)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	/* futimens: no path, the descriptor itself */
	return name_or_fd(EVENT_UTIMES, s->call.args[0], s->call.args[1], 0, 0, s->call.args[3]);
}

HANDLER(on_mount)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = s->call.args[3];
	s->e.path = named(AT_FDCWD, s->call.args[1]);
	s->e.path2 = said(s->call.args[0]);
	return finish();
}

HANDLER(on_umount)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MOUNT, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0) : 0;
}

HANDLER(on_move_mount)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[4];
	s->e.path = named(s->call.args[2], s->call.args[3]);
	s->e.path2 = named(s->call.args[0], s->call.args[1]);
	return finish();
}

HANDLER(on_pivot_root)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = named(AT_FDCWD, s->call.args[1]);
	s->e.path2 = said(s->call.args[0]);
	return finish();
}

HANDLER(on_chroot)
{
	struct scratch *s = begin(EVENT_CHROOT, CLASS_PRIVILEGE);

	if (!s)
		return 0;
	s->e.path = named(AT_FDCWD, s->call.args[0]);
	s->e.path2 = said(s->call.args[0]);
	return finish();
}
