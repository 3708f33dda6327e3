/* The command's own process, from the clone to its exec. It is in the sandbox's pid namespace and cgroup already. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"

static void give_up(int status_fd, int stage) __attribute__((noreturn));
static void give_up(int status_fd, int stage)
{
	int words[2] = { errno, stage };

	if (write(status_fd, words, sizeof(words)) < 0)
		_exit(126);
	_exit(126);
}

/* The host's /proc, before it is left: what is mounted inside is not to be trusted with this. The kernel enters the
 * profile at the exec itself, or refuses the exec. */
static int enter_profile_at_exec(const char *profile)
{
	static const char *const files[] = { "/proc/thread-self/attr/apparmor/exec", "/proc/thread-self/attr/exec" };
	char order[512];
	int fd = -1, size = snprintf(order, sizeof(order), "exec %s", profile);

	for (int i = 0; fd < 0 && i < 2; i++)
		fd = open(files[i], O_WRONLY | O_CLOEXEC);
	if (fd < 0 || size >= (int)sizeof(order))
		return -1;
	int done = write(fd, order, (size_t)size) == size ? 0 : -1;
	close(fd);
	return done;
}

static int enter(const struct command *command, const int *fds)
{
	/* v1 controllers, one `tasks` file each: a thread that moves itself takes no global lock there, where
	 * cgroup.procs waits for an RCU grace period (20 ms here). */
	for (int i = 0; i < command->procs; i++)
		if (write(fds[EXEC_PROCS + i], "0", 1) != 1)
			return -1;
	/* Its own leaf becomes the root of what it sees: neither names on the host nor the phase. */
	if (unshare(CLONE_NEWCGROUP) < 0 ||
	    setns(fds[EXEC_INIT], CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) < 0 ||
	    setns(fds[EXEC_MOUNT], CLONE_NEWNS) < 0 || setns(fds[EXEC_USER], CLONE_NEWUSER) < 0)
		return -1;
	if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		return -1;
	syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
	return 0;
}

static int own_group(const struct command *command)
{
	/* Not a session leader: the pump is, so that this group is no orphan and Ctrl-Z stops it. */
	if (setpgid(0, 0) < 0)
		return -1;
	signal(SIGTTOU, SIG_IGN);
	if (command->tty && tcsetpgrp(0, getpid()) < 0)
		return -1;
	return 0;
}

static void default_signals(void)
{
	sigset_t none;

	for (int number = 1; number < 65; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int confine(const struct command *command)
{
	struct rlimit no_core = { 1, 1 }; /* 1, not 0: a core_pattern with a pipe runs on the host even at 0 */
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct set[2];

	for (int cap = 0; cap < 64; cap++)
		if (!(command->capabilities >> cap & 1) && prctl(PR_CAPBSET_DROP, cap) < 0 && errno != EINVAL)
			return -1;
	for (int half = 0; half < 2; half++) {
		uint32_t word = (uint32_t)(command->capabilities >> (32 * half));
		set[half] = (struct __user_cap_data_struct){ .effective = word, .permitted = word };
	}
	if (syscall(SYS_capset, &head, set) < 0)
		return -1;
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	setrlimit(RLIMIT_CORE, &no_core);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	if (command->seccomp_size == 0)
		return 0;
	struct sock_fprog program = {
		.len = (unsigned short)(command->seccomp_size / sizeof(struct sock_filter)),
		.filter = (struct sock_filter *)command->seccomp,
	};
	/* Where denials are read, its refusals are told as AppArmor's are: by audit records. */
	unsigned int told = command->profile ? SECCOMP_FILTER_FLAG_LOG : 0;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, told, &program);
}

/* As a shell: a file without a known header is a script. The heap of the parent's copy is ours. */
static void run_script(const char *path, const struct command *command)
{
	size_t count = 0;

	while (command->arguments[count])
		count++;
	char **words = calloc(count + 2, sizeof(*words));
	if (!words)
		return;
	words[0] = "/bin/sh";
	words[1] = (char *)path;
	for (size_t i = 1; i < count; i++)
		words[i + 1] = command->arguments[i];
	execve(words[0], words, command->environment);
}

static void try_exec(const char *path, const struct command *command)
{
	execve(path, command->arguments, command->environment);
	if (errno == ENOEXEC)
		run_script(path, command);
}

static const char *search_path(const struct command *command)
{
	for (char **word = command->environment; *word; word++)
		if (strncmp(*word, "PATH=", 5) == 0)
			return *word + 5;
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

static void execute(const struct command *command)
{
	const char *name = command->arguments[0];
	char path[8192];
	int refused = 0;

	if (strchr(name, '/')) {
		try_exec(name, command);
		return;
	}
	for (const char *folder = search_path(command); folder; ) {
		const char *end = strchrnul(folder, ':');
		size_t length = (size_t)(end - folder), rest = strlen(name);
		if (length + rest + 2 <= sizeof(path)) {
			memcpy(path, folder, length);
			path[length] = '/';
			memcpy(path + length + !!length, name, rest + 1);
			try_exec(path, command);
			if (errno == E2BIG)
				return;
			refused |= errno == EACCES;
		}
		folder = *end ? end + 1 : NULL;
	}
	errno = refused ? EACCES : ENOENT;
}

void become_command(const struct command *command, const int *fds, int status_fd)
{
	if (command->profile && enter_profile_at_exec(command->profile) < 0)
		give_up(status_fd, STAGE_PROFILE);
	if (enter(command, fds) < 0)
		give_up(status_fd, STAGE_ENTER);
	for (int i = 0; i < 3; i++)
		if (dup2(fds[EXEC_CHILD_IN + i], i) < 0)
			give_up(status_fd, STAGE_ENTER);
	int last = dup3(status_fd, 3, O_CLOEXEC);
	if (last < 0 && status_fd != 3)
		give_up(status_fd, STAGE_ENTER);
	fcntl(3, F_SETFD, FD_CLOEXEC);
	sys_close_range(4);
	umask(022);
	if (own_group(command) < 0)
		give_up(3, STAGE_ENTER);
	if (chdir(command->cwd) < 0)
		give_up(3, STAGE_CWD);
	default_signals();
	if (confine(command) < 0)
		give_up(3, STAGE_CONFINE);
	execute(command);
	give_up(3, STAGE_EXEC);
}
