/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What a name led to. A call by name has resolved it just before, so every folder and link on the way is in the
 * kernel's name cache: it is followed there once more, through mounts and symbolic links, without a lock. Where
 * a step is not found (evicted, a link whose text is not in memory), what the process said stands, as it does where
 * another thread changed the way meanwhile.
 */
#pragma once

#include "links.h"

#define STEPS_MAX 16384 /* the longest path is 2,048 names, each of some five steps */
#define MOUNTED_BEFORE_6_14 0x00010000

static __always_inline __u32 mounted_flag(void)
{
	if (bpf_core_enum_value_exists(enum dentry_flags, DCACHE_MOUNTED))
		return bpf_core_enum_value(enum dentry_flags, DCACHE_MOUNTED);
	return MOUNTED_BEFORE_6_14;
}

static __always_inline struct mount *mount_of(__u64 vfsmount)
{
	return (struct mount *)(vfsmount - bpf_core_field_offset(struct mount, mnt));
}

static __always_inline enum tread enter(struct scratch *s, struct road *r, struct dentry *here)
{
	struct inode *inode;

	if (GET(here, d_flags) & mounted_flag()) {
		s->way.other = number_of(s, GET(mount_of(s->way.mount), mnt_mounts.next));
		return TREAD_MOUNTS;
	}
	inode = GET(here, d_inode);
	if (!inode)
		return TREAD_LOST;
	if ((GET(inode, i_mode) & S_IFMT) == S_IFLNK && (road_at(r, s->way.at) || s->way.last >= LAST_FOLLOWED))
		return is_magic(inode) ? follow_magic(s, r, here) : follow_link(s, r, here);
	return TREAD_NEXT;
}

/* Among the mounts below this one, that which covers the place. */
static __always_inline enum tread look_for_mount(struct scratch *s)
{
	struct mount *here = mount_of(s->way.mount), *other;
	__u64 list = s->way.other;

	if (list == number_of(s, here) + bpf_core_field_offset(struct mount, mnt_mounts))
		return TREAD_NEXT;
	other = (struct mount *)(list - bpf_core_field_offset(struct mount, mnt_child));
	if (number_of(s, GET(other, mnt_mountpoint)) != s->way.dentry) {
		s->way.other = number_of(s, GET(other, mnt_child.next));
		if (s->way.other == list) /* unmounted meanwhile: it leads nowhere but to itself */
			s->way.other = number_of(s, GET(here, mnt_mounts.next));
		return TREAD_MOUNTS;
	}
	s->way.mount = number_of(s, other) + bpf_core_field_offset(struct mount, mnt);
	s->way.dentry = number_of(s, GET(other, mnt.mnt_root));
	return TREAD_ENTER;
}

static __always_inline enum tread go_up(struct scratch *s, struct dentry *here)
{
	struct mount *mount = mount_of(s->way.mount), *parent;

	if (s->way.dentry == s->way.root && s->way.mount == s->way.root_mount)
		return TREAD_NEXT;
	if (number_of(s, GET(mount, mnt.mnt_root)) != s->way.dentry) {
		s->way.dentry = number_of(s, GET(here, d_parent));
		return TREAD_ENTER;
	}
	parent = GET(mount, mnt_parent);
	if (parent == mount)
		return TREAD_NEXT;
	s->way.dentry = number_of(s, GET(mount, mnt_mountpoint));
	s->way.mount = number_of(s, parent) + bpf_core_field_offset(struct mount, mnt);
	return TREAD_UP;
}

static long tread(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	struct road *r = road();
	struct dentry *here;

	if (!s || !r)
		return 1;
	here = (struct dentry *)s->way.dentry;
	switch (s->way.state) {
	case TREAD_NEXT: s->way.state = next_name(s, r, here); break;
	case TREAD_CHAIN: s->way.state = search_chain(s); break;
	case TREAD_SEARCH: s->way.state = search(s); break;
	case TREAD_CHECK: s->way.state = check(s, r); break;
	case TREAD_ENTER: s->way.state = enter(s, r, here); break;
	case TREAD_MOUNTS: s->way.state = look_for_mount(s); break;
	case TREAD_UP: s->way.state = go_up(s, here); break;
	}
	return s->way.state >= TREAD_END;
}

/* Where the last name of the way begins: after it come only slashes. */
static long find_last(__u32 i, void *unused)
{
	struct scratch *s = scratch();
	struct road *r = road();
	char c, before;

	if (!s || !r)
		return 1;
	c = road_at(r, i);
	before = i ? road_at(r, i - 1) : '/';
	if (c && c != '/' && before == '/')
		s->way.last_name = i;
	return !c;
}

/* Follow what the process said from a folder; whether the way led to its end, or to a folder that lacks the next. */
__noinline int follow_way(int folder, __u64 pointer, __u32 bytes, __u32 last)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct scratch *s = scratch();
	struct road *r = road();
	struct fs_struct *fs;

	if (!s || !r || !pointer)
		return 0;
	if (bytes > PATH_BYTES)
		bytes = PATH_BYTES;
	if (bpf_probe_read_user_str(r->text, bytes, (void *)pointer) <= 1)
		return 0;
	fs = task->fs;
	s->way = (struct way){ .last = last };
	s->way.root = number_of(s, fs->root.dentry);
	s->way.root_mount = number_of(s, fs->root.mnt);
	if (r->text[0] == '/') {
		s->way.dentry = s->way.root;
		s->way.mount = s->way.root_mount;
	} else if (folder == AT_FDCWD) {
		s->way.dentry = number_of(s, fs->pwd.dentry);
		s->way.mount = number_of(s, fs->pwd.mnt);
	} else {
		struct file *file = file_of(task, folder);

		if (!file)
			return 0;
		s->way.dentry = number_of(s, GET(file, f_path.dentry));
		s->way.mount = number_of(s, GET(file, f_path.mnt));
	}
	if (last == LAST_GONE)
		bpf_loop(PATH_BYTES, find_last, NULL, 0);
	bpf_loop(STEPS_MAX, tread, NULL, 0);
	return s->way.state == TREAD_END || s->way.state == TREAD_ABSENT;
}

/* What the way led to, where it led to its end. */
static __always_inline struct dentry *led_to(struct scratch *s)
{
	return s->way.state == TREAD_END ? (struct dentry *)s->way.dentry : NULL;
}

/* The serial of the folder that the way led to, and what was said of the rest. */
static __always_inline int led_so_far(struct scratch *s)
{
	struct dentry *folder = (struct dentry *)s->way.dentry;
	int length = walk(s->way.dentry);
	struct road *r = road();
	long more;

	if (!r || length < 0 || length > PATH_BYTES)
		return 0;
	s->text[TEXT_AT + within(length, 8191)] = 0;
	more = bpf_probe_read_kernel_str(&s->text[TEXT_AT + within(length + 1, 8191)], PATH_BYTES,
					 &r->text[within(s->way.name, 2 * ROAD_HALF - 1)]);
	return more > 1 ? intern(length + more, device_of(folder), STRING_JOINED) : 0;
}

#define STACKED_MAX 8

/* From the roots of mounts, one on the other, to the place that they cover. */
static __always_inline void uncover(struct scratch *s)
{
	int i;

	for (i = 0; i < STACKED_MAX; i++) {
		struct mount *mount = mount_of(s->way.mount), *parent = GET(mount, mnt_parent);

		if (number_of(s, GET(mount, mnt.mnt_root)) != s->way.dentry || parent == mount ||
		    s->way.mount == s->way.root_mount)
			return;
		s->way.dentry = number_of(s, GET(mount, mnt_mountpoint));
		s->way.mount = number_of(s, parent) + bpf_core_field_offset(struct mount, mnt);
	}
}

/* The serial of where a name of at most so many bytes led; of what was said, made absolute, where no way was found. */
__noinline int located_in(int folder, __u64 pointer, __u32 bytes, __u32 last)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	if (last == LAST_SAID || !follow_way(folder, pointer, bytes, last)) {
		s->way.state = TREAD_LOST;
		return named_in(folder, pointer, bytes);
	}
	if (last == LAST_COVERED && led_to(s))
		uncover(s);
	if (led_to(s))
		return path_of(s->way.dentry);
	if (last != LAST_GONE || s->way.name < s->way.last_name)
		s->e.flags |= FLAG_PATH_USER;
	return led_so_far(s);
}

/* The same of a path, which ends with its NUL. */
static __always_inline int located(int folder, __u64 pointer, __u32 last)
{
	return located_in(folder, pointer, PATH_BYTES, last);
}

/* What the last name that was located leads to becomes the event's object. */
static __always_inline void take_led_to(struct scratch *s)
{
	struct dentry *dentry = led_to(s);
	__u32 path = s->e.path;

	if (!dentry)
		return;
	take_object(s, GET(dentry, d_inode), dentry);
	s->e.path = path;
	if ((s->e.mode & S_IFMT) == S_IFREG && (s->e.mode & 0111))
		s->e.flags |= FLAG_EXECUTABLE;
}
