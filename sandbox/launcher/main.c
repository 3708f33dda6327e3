/* launcher CONTROL-FD [CGROUP-FOLDER…]: the zygote. The folders are reaped when the control socket closes.
 * launcher pause: the init of a container. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

#define CLONES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)

static void handle(const struct request *request, int *fds, int count)
{
	/* START: the third descriptor is the v2 cgroup that init shall live in. */
	int start = request->kind == REQUEST_START && count > FD_FIRST;
	long child = sys_clone(start ? CLONES : 0, NULL, start ? fds[FD_FIRST] : -1);

	if (child < 0) {
		struct reply reply = { .error = errno, .op = ~0U };
		send_with_fds(fds[FD_REPLY], &reply, sizeof(reply), NULL, 0);
		return;
	}
	if (child > 0)
		return;
	die_with_parent();
	signal(SIGCHLD, SIG_DFL);
	close(0); /* the control socket: the agent's alone */
	open("/dev/null", O_RDWR | O_CLOEXEC);
	if (request->kind == REQUEST_START)
		start_sandbox(fds, count);
	if (request->kind == REQUEST_RUN)
		run_operations(fds, count);
	if (request->kind == REQUEST_EXEC)
		exec_command(fds, count);
	_exit(125);
}

static void on_child(int number)
{
	(void)number;
	int kept = errno;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	errno = kept;
}

static void serve(int control)
{
	struct request request;
	int fds[FDS_MAX], count;

	for (;;) {
		int got = receive_with_fds(control, &request, sizeof(request), fds, &count);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0 || (got < 0 && errno == ECONNRESET))
			return;
		if (got < 0) /* not the agent's end: it starts another of us, and needs its cgroups */
			_exit(4);
		if (got == sizeof(request) && count >= FD_FIRST)
			handle(&request, fds, count);
		for (int i = 0; i < count; i++)
			close(fds[i]);
	}
}

/* Leave the reaper behind and go; all other children were to be killed when we do. */
static void leave(char *const *folders)
{
	signal(SIGCHLD, SIG_DFL);
	if (fork() == 0)
		reap_cgroups(folders);
	_exit(0);
}

/* The command line is what every process of a sandbox can read of its init: keep the words, show none. */
static char **hide_words(int argc, char **argv)
{
	char **words = calloc((size_t)argc + 1, sizeof(*words));
	char *end = argv[argc - 1] + strlen(argv[argc - 1]);

	for (int i = 0; words && i < argc; i++)
		if (!(words[i] = strdup(argv[i])))
			return NULL;
	memset(argv[0], 0, (size_t)(end - argv[0]));
	memcpy(argv[0], "init", 4); /* shorter than any name that we are started by */
	*end = ' '; /* the words end without a NUL: /proc/PID/cmdline then stops at the first, as for setproctitle */
	return words;
}

int main(int argc, char **argv)
{
	if (argc < 2 || strlen(argv[0]) < 4 || !(argv = hide_words(argc, argv)))
		return 2;
	if (strcmp(argv[1], "pause") == 0)
		be_init();
	int control = atoi(argv[1]);
	struct sigaction child = { .sa_handler = on_child, .sa_flags = SA_RESTART | SA_NOCLDSTOP };

	if (control > 0 && (dup3(control, 0, O_CLOEXEC) < 0))
		return 2;
	sys_close_range(3);
	setsid(); /* the terminal's Ctrl-C is for the guard, which then removes its sandboxes in order */
	umask(0);
	prctl(PR_SET_NAME, "guard-launcher");
	prctl(PR_SET_DUMPABLE, 0);
	syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
	/* A slave of the host's mounts: what the host unmounts goes here too, and nothing goes back. */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		return 3;
	sigaction(SIGCHLD, &child, NULL);
	serve(0);
	leave(argv + 2);
}
