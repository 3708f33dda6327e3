/* A user namespace, and with it a network namespace that it owns, made by a child that leaves at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

static int write_text(const char *path, const char *text, size_t length)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t written = write(fd, text, length);
	close(fd);
	return written == (ssize_t)length ? 0 : -1;
}

static int loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	int done = ioctl(fd, SIOCSIFFLAGS, &request);
	close(fd);
	return done;
}

/* The child: its sysctls are those of the namespace that it was born in, and nobody inside can undo them. */
static int furnish(const char *limit, int network)
{
	if (limit[0] != '-' && write_text("proc/sys/user/max_user_namespaces", limit, strlen(limit)) < 0)
		return errno;
	if (network && loopback_up() < 0)
		return errno;
	return 0;
}

static int open_namespace(long pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "proc/%ld/ns/%s", pid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static int map_ids(long pid, const char *file, const struct operation *op, int index)
{
	char path[64];

	snprintf(path, sizeof(path), "proc/%ld/%s", pid, file);
	return write_text(path, op->text[index], op->length[index]);
}

int user_namespace(const struct operation *op, struct build *build)
{
	int go[2], status = 0, network = (int)number(op, 3);
	long long slot = number(op, 0);

	if (slot < 0 || slot >= SLOTS_MAX || pipe2(go, O_CLOEXEC) < 0)
		return -1;
	long child = sys_clone(CLONE_NEWUSER | (network ? CLONE_NEWNET : 0), NULL, -1);
	if (child == 0) {
		char byte;
		die_with_parent();
		close(go[1]);
		_exit(read(go[0], &byte, 1) == 1 ? furnish(op->text[4], network) : EPIPE);
	}
	/* In this pid namespace the child's number is what its own /proc calls it. */
	int done = child > 0 && map_ids(child, "uid_map", op, 1) == 0 && map_ids(child, "gid_map", op, 2) == 0 &&
		   (build->slots[slot] = open_namespace(child, "user")) >= 0 &&
		   (!network || (build->slots[SLOT_NET] = open_namespace(child, "net")) >= 0);
	int failure = errno;
	if (done && write(go[1], "!", 1) != 1)
		done = 0;
	close(go[0]);
	close(go[1]);
	if (child > 0 && waitpid((pid_t)child, &status, 0) < 0)
		done = 0;
	if (done && status == 0 && (!network || setns(build->slots[SLOT_NET], CLONE_NEWNET) == 0))
		return 0;
	errno = WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : failure;
	return -1;
}
