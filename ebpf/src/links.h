/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Symbolic links on a way: by their text, and those of /proc that lead to an object. */
#pragma once

#include "way.h"

#define LINKS_MAX 40               /* MAXSYMLINKS (linux/namei.h) */
#define OVERLAYFS_MAGIC 0x794c7630 /* linux/magic.h */
#define PROC_MAGIC 0x9fa0
#define XFS_SUPER_MAGIC 0x58465342
#define XFS_DINODE_FMT_LOCAL 1     /* fs/xfs/libxfs/xfs_format.h */
#define NUMBER_DIGITS 10

/* An overlay's inode shows that of a file in one of its layers. */
static __always_inline struct inode *shown_by_overlay(struct inode *inode)
{
	struct ovl_inode *shown = (void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
	struct dentry *real = GET_OF_MODULE(shown, __upperdentry);

	if (!real && bpf_core_field_exists(((struct ovl_inode *)0)->oe)) {
		struct ovl_entry *entry = GET_OF_MODULE(shown, oe);
		struct ovl_path *lowest;

		if (!entry || !GET_OF_MODULE(entry, __numlower))
			return NULL;
		lowest = (void *)entry + bpf_core_field_offset(struct ovl_entry, __lowerstack);
		real = GET_OF_MODULE(lowest, dentry);
	}
	return real ? GET(real, d_inode) : NULL;
}

/* XFS keeps a short link's text in its own inode, and ends it with a NUL (xfs_init_local_fork). */
static __always_inline const char *text_in_xfs(struct inode *inode)
{
	struct xfs_inode *xfs = (void *)inode - bpf_core_field_offset(struct xfs_inode, i_vnode);

	if (!bpf_core_field_exists(((struct xfs_ifork *)0)->if_data) ||
	    GET_OF_MODULE(xfs, i_df.if_format) != XFS_DINODE_FMT_LOCAL)
		return NULL;
	return GET_OF_MODULE(xfs, i_df.if_data);
}

static __always_inline __u64 magic_of(struct inode *inode)
{
	struct super_block *sb = GET(inode, i_sb);

	return GET(sb, s_magic);
}

/* The text of a symbolic link, where it is in memory. */
static __always_inline const char *link_text(struct dentry *dentry)
{
	struct inode *inode = GET(dentry, d_inode);
	const char *text;

	if (magic_of(inode) == OVERLAYFS_MAGIC && bpf_core_type_exists(struct ovl_inode))
		inode = shown_by_overlay(inode);
	text = inode ? GET(inode, i_link) : NULL;
	if (inode && !text && magic_of(inode) == XFS_SUPER_MAGIC && bpf_core_type_exists(struct xfs_inode))
		text = text_in_xfs(inode);
	return text;
}

/* Put the link's text before the rest of the way. */
static __always_inline enum tread follow_link(struct scratch *s, struct road *r, struct dentry *link)
{
	__u32 at = s->way.at, to = at < ROAD_HALF ? ROAD_HALF : 0;
	const char *text = link_text(link);
	long length, rest;

	if (!text || s->way.links++ >= LINKS_MAX)
		return TREAD_LOST;
	length = bpf_probe_read_kernel_str(&r->text[within(to, ROAD_HALF)], PATH_BYTES, text);
	if (length <= 1)
		return TREAD_LOST;
	rest = bpf_probe_read_kernel_str(&r->text[within(to + length - 1, 2 * ROAD_HALF - 1)], PATH_BYTES,
					 &r->text[within(at, 2 * ROAD_HALF - 1)]);
	if (rest <= 0 || rest == PATH_BYTES)
		return TREAD_LOST;
	s->way.last_name += to + length - 1 - at;
	s->way.at = to;
	if (road_at(r, to) == '/') {
		s->way.dentry = s->way.root;
		s->way.mount = s->way.root_mount;
	} else {
		s->way.dentry = number_of(s, GET(link, d_parent));
	}
	return TREAD_NEXT;
}

static __always_inline enum tread go_to(struct scratch *s, __u64 mount, __u64 dentry)
{
	if (!mount || !dentry || s->way.links++ >= LINKS_MAX)
		return TREAD_LOST;
	s->way.mount = mount;
	s->way.dentry = dentry;
	return TREAD_NEXT;
}

/* /proc/self: the text is the process's own number. */
static __always_inline enum tread follow_self(struct scratch *s, struct road *r, struct dentry *link)
{
	__u64 number = own_number(bpf_get_current_task_btf()->group_leader);
	__u32 at = s->way.at, to = at < ROAD_HALF ? ROAD_HALF : 0, end;
	long rest;
	int i;

	end = within(to, ROAD_HALF) + NUMBER_DIGITS;
	rest = bpf_probe_read_kernel_str(&r->text[end], PATH_BYTES, &r->text[within(at, 2 * ROAD_HALF - 1)]);
	if (rest <= 0 || rest == PATH_BYTES || !number)
		return TREAD_LOST;
	s->way.last_name += end - at;
	for (i = 0; i < NUMBER_DIGITS && number; i++) {
		r->text[within(--end, 2 * ROAD_HALF - 1)] = '0' + number % 10;
		number /= 10;
	}
	s->way.at = end;
	s->way.dentry = number_of(s, GET(link, d_parent));
	return TREAD_NEXT;
}

/* /proc/N/root, cwd and exe, and /proc/N/fd/M lead to an object, not along a text. */
static __always_inline enum tread follow_magic(struct scratch *s, struct road *r, struct dentry *link)
{
	struct dentry *folder = GET(link, d_parent);
	struct inode *inode = GET(link, d_inode);
	struct proc_inode *known;
	struct task_struct *task;
	struct hlist_node *first;
	char name[2] = {}, above[2] = {};
	struct pid *pid;

	bpf_probe_read_kernel(name, sizeof(name), GET(link, d_name.name));
	bpf_probe_read_kernel(above, sizeof(above), GET(folder, d_name.name));
	if (GET(folder, d_parent) == folder)
		return name[0] == 's' && GET(link, d_name.len) == 4 ? follow_self(s, r, link) : TREAD_LOST;
	known = (void *)inode - bpf_core_field_offset(struct proc_inode, vfs_inode);
	pid = GET(known, pid);
	first = pid ? GET(pid, tasks[0].first) : NULL;
	if (!first)
		return TREAD_LOST;
	task = (void *)first - bpf_core_field_offset(struct task_struct, pid_links);
	if (above[0] == 'f' && above[1] == 'd') {
		struct files_struct *files = GET(task, files);
		struct fdtable *table = files ? GET(files, fdt) : NULL;
		struct file *file = NULL;
		__u32 fd = GET(known, fd);

		if (!table || fd >= GET(table, max_fds))
			return TREAD_LOST;
		bpf_probe_read_kernel(&file, sizeof(file), GET(table, fd) + fd);
		if (!file)
			return TREAD_LOST;
		return go_to(s, number_of(s, GET(file, f_path.mnt)), number_of(s, GET(file, f_path.dentry)));
	}
	if (name[0] == 'r' || name[0] == 'c') {
		struct fs_struct *fs = GET(task, fs);

		if (!fs)
			return TREAD_LOST;
		return name[0] == 'r'
			       ? go_to(s, number_of(s, GET(fs, root.mnt)), number_of(s, GET(fs, root.dentry)))
			       : go_to(s, number_of(s, GET(fs, pwd.mnt)), number_of(s, GET(fs, pwd.dentry)));
	}
	if (name[0] == 'e') {
		struct mm_struct *mm = GET(task, mm);
		struct file *file = mm ? GET(mm, exe_file) : NULL;

		if (file)
			return go_to(s, number_of(s, GET(file, f_path.mnt)), number_of(s, GET(file, f_path.dentry)));
	}
	return TREAD_LOST;
}

static __always_inline bool is_magic(struct inode *inode)
{
	return magic_of(inode) == PROC_MAGIC && !GET(inode, i_link);
}
