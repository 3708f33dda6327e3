/* START: build the sandbox in its own namespaces, hand out what reaches into it, and become its init. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

static int hand_out(struct build *build, int socket)
{
	int fds[SLOT_WORKSPACE_USER], count = 0;

	build->reply.slots = 0;
	for (int i = 0; build->reply.error == 0 && i < SLOT_WORKSPACE_USER; i++) {
		if (build->slots[i] < 0)
			continue;
		fds[count++] = build->slots[i];
		build->reply.slots |= 1u << i;
	}
	return send_with_fds(socket, &build->reply, sizeof(build->reply), fds, count);
}

/* Init: host-side credentials, no descriptors, no signal handlers; it only reaps orphans. */
void be_init(void)
{
	sigset_t all;
	siginfo_t info;

	prctl(PR_SET_NAME, "init");
	sys_close_range(0);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	for (;;) {
		while (waitpid(-1, NULL, WNOHANG | __WALL) > 0)
			;
		sigwaitinfo(&all, &info);
	}
}

void start_sandbox(int *fds, int fd_count)
{
	struct build build;
	struct spec spec;

	build_init(&build, fds, fd_count);
	if (unshare(CLONE_NEWCGROUP) < 0 || spec_open(&spec, fds[FD_SPEC]) < 0)
		build.reply.error = errno;
	else if (build_run(&build, &spec) == 0)
		build.slots[SLOT_INIT] = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int sent = hand_out(&build, fds[FD_REPLY]);
	if (build.reply.error || sent < 0)
		_exit(1);
	be_init();
}

/* RUN: operations in a mount namespace of their own, or in one that they join. */
void run_operations(int *fds, int fd_count)
{
	struct build build;
	struct spec spec;

	build_init(&build, fds, fd_count);
	if (unshare(CLONE_NEWNS) < 0 || spec_open(&spec, fds[FD_SPEC]) < 0)
		build.reply.error = errno;
	else
		build_run(&build, &spec);
	hand_out(&build, fds[FD_REPLY]);
	_exit(0);
}
