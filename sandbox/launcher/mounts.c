/* The operations of a specification. Paths are relative to the stage until OP_PIVOT, then to the new root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif

void build_init(struct build *build, const int *fds, int fd_count)
{
	memset(build, 0, sizeof(*build));
	build->fds = fds;
	build->fd_count = fd_count;
	build->own = -1;
	for (int i = 0; i < SLOTS_MAX; i++)
		build->slots[i] = -1;
}

static int *slot_of(struct build *build, long long index)
{
	return index >= 0 && index < SLOTS_MAX ? &build->slots[index] : NULL;
}

static int keep(struct build *build, long long index, int fd)
{
	int *slot = slot_of(build, index);

	if (fd < 0 || !slot)
		return -1;
	*slot = fd;
	return 0;
}

static int given(struct build *build, long long index)
{
	return index >= 0 && index < build->fd_count ? build->fds[index] : -1;
}

static int stage(const char *path)
{
	if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=700,size=1m") < 0)
		return -1;
	return chdir(path);
}

/* One that is there already stays as it is: to change it would copy it up, and be a change of the sandbox's. */
static int make_folder(const struct operation *op)
{
	uid_t uid = (uid_t)number(op, 2);
	gid_t gid = (gid_t)number(op, 3);

	if (mkdir(op->text[0], (mode_t)number(op, 1)) < 0)
		return errno == EEXIST ? 0 : -1;
	return uid || gid ? lchown(op->text[0], uid, gid) : 0;
}

static int make_node(const struct operation *op)
{
	dev_t device = makedev((unsigned)number(op, 2), (unsigned)number(op, 3));

	if (mknod(op->text[0], (mode_t)number(op, 1), device) < 0)
		return -1;
	return lchown(op->text[0], (uid_t)number(op, 4), (gid_t)number(op, 5));
}

static int make_file(const struct operation *op)
{
	int fd = open(op->text[0], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	int done = write(fd, op->text[4], op->length[4]) == (ssize_t)op->length[4] &&
		   fchown(fd, (uid_t)number(op, 2), (gid_t)number(op, 3)) == 0 &&
		   fchmod(fd, (mode_t)number(op, 1)) == 0;
	close(fd);
	return done ? 0 : -1;
}

/* A detached copy of the mount at a path, with attributes and perhaps an id mapping. */
static int clone_tree(struct build *build, const struct operation *op)
{
	long long mapping = number(op, 3);
	int *user = slot_of(build, mapping);
	int tree = sys_open_tree(AT_FDCWD, op->text[1], OPEN_TREE_CLONE | O_CLOEXEC | AT_SYMLINK_NOFOLLOW);

	if (tree < 0 || sys_mount_attributes(tree, (uint64_t)number(op, 2), user ? *user : -1) < 0)
		return -1;
	return keep(build, number(op, 0), tree);
}

static int place(struct build *build, const struct operation *op)
{
	int *tree = slot_of(build, number(op, 0));

	if (!tree || *tree < 0 || sys_move_mount(*tree, op->text[1]) < 0)
		return -1;
	close(*tree);
	*tree = -1;
	return 0;
}

/* The host's whole tree goes with the old root; overlays keep their layers by themselves. */
static int pivot(const char *path)
{
	if (chdir(path) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
		return -1;
	if (umount2(".", MNT_DETACH) < 0)
		return -1;
	return chdir("/");
}

static int own_namespace(const struct build *build)
{
	if (build->own < 0)
		return open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	return openat(build->own, "ns/mnt", O_RDONLY | O_CLOEXEC);
}

/* Phases setup and agent get their own mount namespace, so that masks in it do not bind the platform. */
static int split(struct build *build)
{
	int plain = own_namespace(build);

	if (keep(build, SLOT_MOUNT, plain) < 0 || unshare(CLONE_NEWNS) < 0)
		return -1;
	if (keep(build, SLOT_MASKED, own_namespace(build)) < 0)
		return -1;
	return setns(plain, CLONE_NEWNS);
}

/* The sandbox's /proc does not show this process, so the way to its own folder is kept open. */
static int join(struct build *build, const struct operation *op)
{
	build->own = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return build->own < 0 ? -1 : setns(given(build, number(op, 0)), CLONE_NEWNS);
}

static int apply(struct build *build, const struct operation *op)
{
	switch (op->code) {
	case OP_STAGE: return stage(op->text[0]);
	case OP_MKDIR: return make_folder(op);
	case OP_MOUNT: return mount(op->text[1], op->text[2], op->text[0], (unsigned long)number(op, 3), op->text[4]);
	case OP_USERNS: return user_namespace(op, build);
	case OP_TREE: return clone_tree(build, op);
	case OP_PLACE: return place(build, op);
	case OP_ATTACH: return sys_move_mount(given(build, number(op, 0)), op->text[1]);
	case OP_SYMLINK: return symlink(op->text[0], op->text[1]);
	case OP_NODE: return make_node(op);
	case OP_FILE: return make_file(op);
	case OP_PIVOT: return pivot(op->text[0]);
	case OP_HOSTNAME: return sethostname(op->text[0], op->length[0]);
	case OP_OPEN: return keep(build, number(op, 0), open(op->text[1], O_PATH | O_CLOEXEC | O_NOFOLLOW));
	case OP_SPLIT: return split(build);
	case OP_JOIN: return join(build, op);
	case OP_DETACH: return umount2(op->text[0], MNT_DETACH | UMOUNT_NOFOLLOW);
	case OP_ADDRESS: return link_address(given(build, number(op, 0)), op);
	case OP_TABLE: return keep(build, SLOT_TABLE, openat(build->own, "mountinfo", O_RDONLY | O_CLOEXEC));
	}
	errno = ENOSYS;
	return -1;
}

static const int arguments[] = {
	[OP_STAGE] = 1, [OP_MKDIR] = 4, [OP_MOUNT] = 5, [OP_USERNS] = 5, [OP_TREE] = 4, [OP_PLACE] = 2,
	[OP_ATTACH] = 2, [OP_SYMLINK] = 2, [OP_NODE] = 6, [OP_FILE] = 5, [OP_PIVOT] = 1, [OP_HOSTNAME] = 1,
	[OP_OPEN] = 2, [OP_SPLIT] = 0, [OP_JOIN] = 1, [OP_DETACH] = 1, [OP_ADDRESS] = 4,
	[OP_TABLE] = 0,
};

static int share_of(uint16_t code)
{
	switch (code) {
	case OP_USERNS: return SHARE_NAMESPACES;
	case OP_STAGE: case OP_MOUNT: return SHARE_MOUNTS;
	case OP_TREE: case OP_PLACE: case OP_ATTACH: return SHARE_TREES;
	case OP_PIVOT: case OP_SPLIT: return SHARE_PIVOT;
	}
	return SHARE_FILES;
}

static int timed_apply(struct build *build, const struct operation *op)
{
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	int done = apply(build, op);
	int kept = errno;
	clock_gettime(CLOCK_MONOTONIC, &to);
	int64_t spent = (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec;
	build->reply.nanoseconds[share_of(op->code)] += (uint32_t)spent;
	errno = kept;
	return done;
}

/* 0, or -1 with `reply` filled in. */
int build_run(struct build *build, struct spec *spec)
{
	struct operation op;
	int more;

	for (build->reply.op = 0; (more = spec_next(spec, &op)) > 0; build->reply.op++) {
		int known = op.code < sizeof(arguments) / sizeof(*arguments) && op.count == arguments[op.code];
		if (known && timed_apply(build, &op) == 0)
			continue;
		build->reply.error = known && errno ? errno : EINVAL;
		return -1;
	}
	build->reply.error = more < 0 ? EBADMSG : 0;
	return more;
}
