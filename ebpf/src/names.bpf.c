/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Calls that name paths. The path is where the name led (resolve.h); of a name that is gone, its folder and
 * itself; else it is made of the folder's own path and what the process said (FLAG_PATH_USER).
 */
#pragma once

#include "resolve.h"

#define AT_SYMLINK_NOFOLLOW 0x100
#define AT_REMOVEDIR 0x200
#define AT_SYMLINK_FOLLOW 0x400
#define AT_EMPTY_PATH 0x1000
#define RENAME_EXCHANGE 2

/* One path; the event's arguments are there already. */
__noinline int tell_name(__u32 kind, int folder, __u64 path, __u32 last)
{
	struct scratch *s = begin(kind, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = located(folder, path, last);
	take_led_to(s);
	s->e.path2 = said(path);
	return finish();
}

static __always_inline int one_name(__u32 kind, int folder, __u64 path, __u64 a0, __u64 a1, __u32 last)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	return tell_name(kind, folder, path, last);
}

/* A path, or the descriptor itself where the path is empty and the flags allow it. */
static __always_inline int name_or_fd(__u32 kind, int folder, __u64 path, __u64 a0, __u64 a1, __u32 flags)
{
	__u32 last = flags & AT_SYMLINK_NOFOLLOW ? LAST_STAYS : LAST_FOLLOWED;
	struct scratch *s;
	char first = 0;

	if (path && ((flags & AT_EMPTY_PATH) == 0 || bpf_probe_read_user(&first, 1, (void *)path) || first))
		return one_name(kind, folder, path, a0, a1, last);
	s = begin(kind, CLASS_FILE);
	if (!s)
		return 0;
	s->e.a0 = a0;
	s->e.a1 = a1;
	object(file_at(folder));
	return finish();
}

static __always_inline int removed(int folder, __u64 path, __u32 flags)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	return one_name(EVENT_UNLINK, folder, path, flags, 0, s->call.result < 0 ? LAST_STAYS : LAST_GONE);
}

/*
 * From and to. The object is what has the new name now; of two that changed places, the other is the second. Where
 * it failed, the second is what has the other name, as far as the way there is found.
 */
__noinline int renamed(int folder, __u64 path, int folder2, __u64 path2)
{
	struct scratch *s = begin(EVENT_RENAME, CLASS_FILE);
	struct identity other;
	struct dentry *dentry;
	bool exchanged;

	if (!s)
		return 0;
	exchanged = s->call.result < 0 || s->e.a0 & RENAME_EXCHANGE;
	s->e.path = located(folder, path, exchanged ? LAST_STAYS : LAST_GONE);
	dentry = led_to(s);
	if (s->call.result < 0) {
		take_led_to(s);
		s->e.path2 = located(folder2, path2, LAST_STAYS);
		dentry = led_to(s);
	}
	if (dentry) {
		other = identify(s, GET(dentry, d_inode), dentry);
		s->e.ino2 = other.ino;
		s->e.dev2 = other.dev;
		s->e.gen2 = other.gen;
	}
	if (s->call.result < 0)
		return finish();
	s->e.path2 = located(folder2, path2, LAST_STAYS);
	take_led_to(s);
	return finish();
}

/* An existing name and a new one. */
__noinline int linked(int folder, __u64 path, int folder2, __u64 path2)
{
	struct scratch *s = begin(EVENT_LINK, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = located(folder, path, s->e.a0 & AT_SYMLINK_FOLLOW ? LAST_FOLLOWED : LAST_STAYS);
	take_led_to(s);
	s->e.path2 = located(folder2, path2, LAST_STAYS);
	return finish();
}

HANDLER(on_rename)
{
	struct scratch *s = scratch();

	return s ? renamed(AT_FDCWD, s->call.args[0], AT_FDCWD, s->call.args[1]) : 0;
}

HANDLER(on_renameat)
{
	struct scratch *s = scratch();

	return s ? renamed(s->call.args[0], s->call.args[1], s->call.args[2], s->call.args[3]) : 0;
}

HANDLER(on_renameat2)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[4];
	return renamed(s->call.args[0], s->call.args[1], s->call.args[2], s->call.args[3]);
}

HANDLER(on_link)
{
	struct scratch *s = scratch();

	return s ? linked(AT_FDCWD, s->call.args[0], AT_FDCWD, s->call.args[1]) : 0;
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
		return linked(s->call.args[0], s->call.args[1], s->call.args[2], s->call.args[3]);
	object(file_at(s->call.args[0]));
	s->e.path2 = located(s->call.args[2], s->call.args[3], LAST_STAYS);
	return finish();
}

/* path = new name, path2 = target text */
__noinline int symlinked(int folder, __u64 name, __u64 target)
{
	struct scratch *s = begin(EVENT_SYMLINK, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = located(folder, name, LAST_STAYS);
	take_led_to(s);
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

HANDLER(on_unlink)
{
	struct scratch *s = scratch();

	return s ? removed(AT_FDCWD, s->call.args[0], 0) : 0;
}

HANDLER(on_rmdir)
{
	struct scratch *s = scratch();

	return s ? removed(AT_FDCWD, s->call.args[0], AT_REMOVEDIR) : 0;
}

HANDLER(on_unlinkat)
{
	struct scratch *s = scratch();

	return s ? removed(s->call.args[0], s->call.args[1], (__u32)s->call.args[2]) : 0;
}

HANDLER(on_mkdir)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKDIR, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0, LAST_STAYS) : 0;
}

HANDLER(on_mkdirat)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKDIR, s->call.args[0], s->call.args[1], (__u32)s->call.args[2], 0,
			    LAST_STAYS)
		 : 0;
}

HANDLER(on_mknod)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKNOD, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], s->call.args[2],
			    LAST_STAYS)
		 : 0;
}

HANDLER(on_mknodat)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MKNOD, s->call.args[0], s->call.args[1], (__u32)s->call.args[2],
			    s->call.args[3], LAST_STAYS)
		 : 0;
}

HANDLER(on_truncate)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_TRUNCATE, AT_FDCWD, s->call.args[0], s->call.args[1], 0, LAST_FOLLOWED) : 0;
}

HANDLER(on_chmod)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_CHMOD, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0, LAST_FOLLOWED) : 0;
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

/* lchown in each table */
#define NR_LCHOWN 94
#define NR_I386_LCHOWN 16
#define NR_I386_LCHOWN32 198

HANDLER(on_chown)
{
	struct scratch *s = scratch();
	bool itself;

	if (!s)
		return 0;
	itself = s->call.abi == ABI_I386 ? s->call.nr == NR_I386_LCHOWN || s->call.nr == NR_I386_LCHOWN32
					 : s->call.nr == NR_LCHOWN;
	return one_name(EVENT_CHOWN, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], (__u32)s->call.args[2],
			itself ? LAST_STAYS : LAST_FOLLOWED);
}

HANDLER(on_fchownat)
{
	struct scratch *s = scratch();

	return s ? name_or_fd(EVENT_CHOWN, s->call.args[0], s->call.args[1], (__u32)s->call.args[2],
			      (__u32)s->call.args[3], s->call.args[4])
		 : 0;
}

/* path = the file, path2 = the attribute's name */
__noinline int attribute(int folder, __u64 path, __u64 name, __u32 last)
{
	struct scratch *s = begin(EVENT_XATTR, CLASS_FILE);

	if (!s)
		return 0;
	s->e.path = located(folder, path, last);
	take_led_to(s);
	s->e.path2 = said(name);
	return finish();
}

#define NR_LSETXATTR 189
#define NR_LREMOVEXATTR 198
#define NR_I386_LSETXATTR 227
#define NR_I386_LREMOVEXATTR 236

HANDLER(on_setxattr)
{
	struct scratch *s = scratch();
	bool itself;

	if (!s)
		return 0;
	itself = s->call.abi == ABI_I386
			 ? s->call.nr == NR_I386_LSETXATTR || s->call.nr == NR_I386_LREMOVEXATTR
			 : s->call.nr == NR_LSETXATTR || s->call.nr == NR_LREMOVEXATTR;
	return attribute(AT_FDCWD, s->call.args[0], s->call.args[1], itself ? LAST_STAYS : LAST_FOLLOWED);
}

HANDLER(on_setxattrat)
{
	struct scratch *s = scratch();

	return s ? attribute(s->call.args[0], s->call.args[1], s->call.args[3],
			     s->call.args[2] & AT_SYMLINK_NOFOLLOW ? LAST_STAYS : LAST_FOLLOWED)
		 : 0;
}

HANDLER(on_utimes)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_UTIMES, AT_FDCWD, s->call.args[0], 0, 0, LAST_FOLLOWED) : 0;
}

/* futimesat, which takes no flags */
#define NR_FUTIMESAT 261
#define NR_I386_FUTIMESAT 299

HANDLER(on_utimesat)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	/* futimens: no path, the descriptor itself */
	return name_or_fd(EVENT_UTIMES, s->call.args[0], s->call.args[1], 0, 0,
			  s->call.nr == NR_FUTIMESAT || s->call.nr == NR_I386_FUTIMESAT ? 0 : s->call.args[3]);
}

HANDLER(on_mount)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = s->call.args[3];
	s->e.path = located(AT_FDCWD, s->call.args[1], LAST_COVERED);
	s->e.path2 = said(s->call.args[0]);
	return finish();
}

HANDLER(on_umount)
{
	struct scratch *s = scratch();

	return s ? one_name(EVENT_MOUNT, AT_FDCWD, s->call.args[0], (__u32)s->call.args[1], 0, LAST_COVERED) : 0;
}

HANDLER(on_move_mount)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[4];
	s->e.path = located(s->call.args[2], s->call.args[3], LAST_COVERED);
	s->e.path2 = named(s->call.args[0], s->call.args[1]);
	return finish();
}

#define OPEN_TREE_CLONE 1

/* A copy of mounts that hangs nowhere yet: what lies there can be reached through its descriptor. */
HANDLER(on_open_tree)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s || !(s->call.args[2] & OPEN_TREE_CLONE))
		return 0;
	s->e.a0 = (__u32)s->call.args[2];
	s->e.path2 = located(s->call.args[0], s->call.args[1], LAST_FOLLOWED);
	return finish();
}

/* A file system to be configured and mounted; path2 = its type */
HANDLER(on_fsopen)
{
	struct scratch *s = begin(EVENT_MOUNT, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = (__u32)s->call.args[1];
	s->e.path2 = said(s->call.args[0]);
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
	if (s->call.result < 0)
		s->e.path = located(AT_FDCWD, s->call.args[0], LAST_FOLLOWED);
	else /* names now begin there */
		s->e.path = path_of(number_of(s, bpf_get_current_task_btf()->fs->root.dentry));
	s->e.path2 = said(s->call.args[0]);
	return finish();
}
