/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What a name led to. A call by name has resolved it just before, so every folder and link on the way is in the
 * kernel's name cache: it is followed there once more, through mounts and symbolic links, without a lock. Where
 * a step is not found (evicted, a link whose text is not in memory, too many neighbours), what the process said
 * stands, as it does where another thread changed the way meanwhile.
 */
#pragma once

#include "record.h"

#define ROAD_HALF 8192    /* two texts of the way still to go: a link's target goes before the rest, into the other */
#define STEPS_MAX 16384
#define LINKS_MAX 40      /* MAXSYMLINKS (linux/namei.h) */
#define NEIGHBOURS_MAX 8192 /* names looked at for one component */
#define OVERLAYFS_MAGIC 0x794c7630 /* linux/magic.h */
#define PROC_MAGIC 0x9fa0
#define NUMBER_DIGITS 10
#define MOUNTED_BEFORE_6_14 0x00010000
#define ENOENT 2
#define ENOTDIR 20

/* How a call takes the last name of its path. */
enum last_name {
	LAST_GONE = 0,     /* it is there no more: its folder tells it */
	LAST_STAYS = 1,    /* it is there, and is meant itself even where it is a link */
	LAST_FOLLOWED = 2, /* where it is a link, what it leads to is meant */
	LAST_SAID = 3,     /* it is not sought: what the process said is the path */
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

/* Names found before, a CPU: folder and child. The child is looked at again: it may have gone or moved. */
#define FOUND 1024
struct found { __u64 folder, child; };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FOUND);
	__type(key, __u32);
	__type(value, struct found);
} founds SEC(".maps");

#define AT_ONCE 16 /* neighbours looked at in one step */

enum tread { TREAD_NEXT, TREAD_SEARCH, TREAD_CHECK, TREAD_ENTER, TREAD_MOUNTS, TREAD_UP, TREAD_END, TREAD_ABSENT, TREAD_LOST };

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

/* The text of a symbolic link, where it is in memory; an overlay's lies with the file that it shows. */
static __always_inline const char *link_text(struct dentry *dentry)
{
	struct inode *inode = GET(dentry, d_inode);
	struct super_block *sb = GET(inode, i_sb);

	if (GET(sb, s_magic) == OVERLAYFS_MAGIC && bpf_core_type_exists(struct ovl_inode)) {
		struct ovl_inode *shown = (void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
		struct dentry *real = GET(shown, __upperdentry);

		if (!real && bpf_core_field_exists(((struct ovl_inode *)0)->oe)) {
			struct ovl_entry *entry = GET(shown, oe);
			struct ovl_path *lowest;

			if (!entry || !GET(entry, __numlower))
				return NULL;
			lowest = (void *)entry + bpf_core_field_offset(struct ovl_entry, __lowerstack);
			real = GET(lowest, dentry);
		}
		if (!real)
			return NULL;
		inode = GET(real, d_inode);
	}
	return inode ? GET(inode, i_link) : NULL;
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
	struct super_block *sb = GET(inode, i_sb);

	return GET(sb, s_magic) == PROC_MAGIC && !GET(inode, i_link);
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

/* The length of the name that begins at `at`, and a hash of its beginning. */
static __always_inline void measure_name(struct scratch *s, struct road *r, __u32 at)
{
	__u64 mixed = s->way.dentry, word, end = 0;
	int i;

	s->way.length = 0;
	for (i = 0; i < NAME_WORDS && !end; i++) {
		word = word_at(r, at + i * 8);
		end = end_in(word);
		if (end)
			word &= (end - 1) >> 7;
		mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
		mixed ^= mixed >> 29;
		s->way.length += 8;
	}
	for (; end > 0x80; end >>= 8)
		s->way.length++;
	s->way.length -= 8;
	s->way.hash = mixed;
}

static __always_inline struct found *found_before(struct scratch *s)
{
	__u32 at = (s->way.hash >> 32) & (FOUND - 1);

	return bpf_map_lookup_elem(&founds, &at);
}

/* Where the next name begins, and what sort it is. */
static __always_inline enum tread next_name(struct scratch *s, struct road *r, struct dentry *here)
{
	__u32 at = s->way.at;
	char c = road_at(r, at);
	struct found *found;

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
	s->way.looked = 0;
	measure_name(s, r, at);
	if (s->way.last == LAST_GONE && at >= s->way.last_name)
		return TREAD_ABSENT;
	s->way.other = number_of(s, GET(here, d_children.first));
	found = found_before(s);
	if (found && found->folder == s->way.dentry) {
		s->way.child = found->child;
		return TREAD_CHECK;
	}
	return TREAD_SEARCH;
}

/* Among the neighbours, the next whose name has the right length. */
static __always_inline enum tread search(struct scratch *s)
{
	__u64 other = s->way.other;
	struct dentry *child;
	int i;

	if (s->way.looked >= NEIGHBOURS_MAX)
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
	struct found *found;

	if (number_of(s, GET(child, d_parent)) != s->way.dentry || !has_name(r, child, s->way.at, s->way.length))
		return TREAD_SEARCH;
	found = found_before(s);
	if (found) {
		found->folder = s->way.dentry;
		found->child = s->way.child;
	}
	s->way.at += s->way.length;
	s->way.dentry = s->way.child;
	return TREAD_ENTER;
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
	if ((GET(inode, i_mode) & S_IFMT) == S_IFLNK && (road_at(r, s->way.at) || s->way.last == LAST_FOLLOWED))
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
__noinline int follow_way(int folder, __u64 pointer, __u32 last)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct scratch *s = scratch();
	struct road *r = road();
	struct fs_struct *fs;

	if (!s || !r || !pointer || !bpf_core_field_exists(((struct dentry *)0)->d_children))
		return 0;
	if (bpf_probe_read_user_str(r->text, PATH_BYTES, (void *)pointer) <= 1)
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

/* The serial of where a name led; of what the process said, made absolute, where the way was not found. */
__noinline int located(int folder, __u64 pointer, __u32 last)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	if (last == LAST_SAID || !follow_way(folder, pointer, last)) {
		s->way.state = TREAD_LOST;
		return named(folder, pointer);
	}
	if (led_to(s))
		return path_of(s->way.dentry);
	if (last != LAST_GONE)
		s->e.flags |= FLAG_PATH_USER;
	return led_so_far(s);
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
