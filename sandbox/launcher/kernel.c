#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

/* Fork with clone3; `cgroup` is a descriptor of a v2 folder, or -1. */
long sys_clone(uint64_t flags, int *pidfd, int cgroup)
{
	struct clone_args args = { .flags = flags, .exit_signal = SIGCHLD };

	if (pidfd) {
		args.flags |= CLONE_PIDFD;
		args.pidfd = (uint64_t)(uintptr_t)pidfd;
	}
	if (cgroup >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)cgroup;
	}
	return syscall(SYS_clone3, &args, sizeof(args));
}

int sys_open_tree(int dir, const char *path, unsigned int flags)
{
	return (int)syscall(SYS_open_tree, dir, path, flags);
}

int sys_move_mount(int tree, const char *target)
{
	return (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH);
}

int sys_mount_attributes(int tree, uint64_t set, int user_namespace)
{
	struct mount_attr attr = { .attr_set = set };

	if (user_namespace >= 0) {
		attr.attr_set |= MOUNT_ATTR_IDMAP;
		attr.userns_fd = (uint64_t)user_namespace;
	}
	return (int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof(attr));
}

int sys_close_range(unsigned int first)
{
	return (int)syscall(SYS_close_range, first, ~0U, 0);
}

int send_with_fds(int socket, const void *data, size_t size, const int *fds, int count)
{
	char control[CMSG_SPACE(sizeof(int) * FDS_MAX)] = { 0 };
	struct iovec part = { .iov_base = (void *)data, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (count > 0) {
		size_t length = sizeof(int) * (size_t)count;
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(length);
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(length);
		memcpy(CMSG_DATA(head), fds, length);
	}
	ssize_t sent;
	do
		sent = sendmsg(socket, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)size ? 0 : -1;
}

/* The size of the message, 0 at the end of the stream, -1 with errno. */
int receive_with_fds(int socket, void *data, size_t size, int *fds, int *count)
{
	char control[CMSG_SPACE(sizeof(int) * FDS_MAX)] = { 0 };
	struct iovec part = { .iov_base = data, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
				  .msg_control = control, .msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);

	*count = 0;
	if (got <= 0)
		return (int)got;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		*count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(head), sizeof(int) * (size_t)*count);
	}
	return (int)got;
}

void die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}
