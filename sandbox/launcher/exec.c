/* EXEC: start one command in a sandbox and stay with it as the pump of its streams. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

static int push(char ***words, size_t *count, const char *word)
{
	if ((*count & (*count + 1)) == 0) {
		char **larger = realloc(*words, sizeof(**words) * (*count * 2 + 3));
		if (!larger)
			return -1;
		*words = larger;
	}
	(*words)[(*count)++] = (char *)word;
	(*words)[*count] = NULL;
	return 0;
}

static int read_command(struct spec *spec, struct command *command)
{
	struct operation op;
	size_t words = 0, variables = 0;
	int more;

	if (push(&command->arguments, &words, NULL) < 0 || push(&command->environment, &variables, NULL) < 0)
		return -1;
	words = variables = 0;
	while ((more = spec_next(spec, &op)) > 0) {
		if (op.count < 1)
			return -1;
		if (op.code == OP_ARGUMENT && push(&command->arguments, &words, op.text[0]) < 0)
			return -1;
		if (op.code == OP_ENVIRONMENT && push(&command->environment, &variables, op.text[0]) < 0)
			return -1;
		if (op.code == OP_CWD)
			command->cwd = op.text[0];
		if (op.code == OP_PROFILE)
			command->profile = op.text[0];
		if (op.code == OP_SECCOMP) {
			command->seccomp = op.text[0];
			command->seccomp_size = op.length[0];
		}
		if (op.code == OP_SETTINGS) {
			command->capabilities = strtoull(op.text[0], NULL, 10);
			command->output_limit = number(&op, 1);
			command->tty = (int)number(&op, 2);
			command->rows = (int)number(&op, 3);
			command->columns = (int)number(&op, 4);
			command->procs = (int)number(&op, 5);
		}
	}
	return more == 0 && words > 0 && command->cwd ? 0 : -1;
}

static void report(int control, uint32_t kind, int value, int detail)
{
	struct report words = { .kind = kind, .value = value, .detail = detail };

	send_with_fds(control, &words, sizeof(words), NULL, 0);
}

static void refuse(int control, int error, int stage) __attribute__((noreturn));
static void refuse(int control, int error, int stage)
{
	report(control, REPORT_FAILED, error, stage);
	_exit(0);
}

static void own_session(const struct command *command, const int *fds)
{
	struct winsize size = { .ws_row = (unsigned short)command->rows, .ws_col = (unsigned short)command->columns };

	setsid();
	for (int number = 1; number < 32; number++)
		if (number != SIGCHLD)
			signal(number, SIG_IGN);
	if (!command->tty)
		return;
	ioctl(fds[EXEC_CHILD_IN], TIOCSWINSZ, &size);
	if (ioctl(fds[EXEC_CHILD_IN], TIOCSCTTY, 0) < 0)
		refuse(fds[EXEC_CONTROL], errno, STAGE_ENTER);
}

/* What only the command needed; the pump keeps the streams. */
static void close_others(const int *fds, int fd_count)
{
	for (int i = EXEC_SPEC; i < fd_count; i++)
		if (i < EXEC_HOST_IN || (i > EXEC_HOST_ERR && i < EXEC_OUR_IN) || i > EXEC_OUR_ERR)
			close(fds[i]);
}

void exec_command(int *fds, int fd_count)
{
	struct command command = { .output_limit = -1 };
	struct spec spec;
	int status[2], words[2], control = fds[EXEC_CONTROL];

	if (fd_count < EXEC_PROCS || spec_open(&spec, fds[EXEC_SPEC]) < 0 || read_command(&spec, &command) < 0 ||
	    command.procs != fd_count - EXEC_PROCS)
		refuse(control, EBADMSG, STAGE_ENTER);
	own_session(&command, fds);
	if (pipe2(status, O_CLOEXEC) < 0 || setns(fds[EXEC_INIT], CLONE_NEWPID) < 0)
		refuse(control, errno, STAGE_ENTER);
	/* Until its exec, the command can be seen inside under the name that it inherits. */
	prctl(PR_SET_NAME, "init");
	long child = sys_clone(0, NULL, fds[EXEC_CGROUP]);
	if (child == 0)
		become_command(&command, fds, status[1]);
	if (child < 0)
		refuse(control, errno, STAGE_ENTER);
	prctl(PR_SET_NAME, "guard-launcher");
	close(status[1]);
	close_others(fds, fd_count);
	ssize_t got = read(status[0], words, sizeof(words));
	close(status[0]);
	if (got == sizeof(words)) {
		waitpid((pid_t)child, NULL, 0);
		refuse(control, words[0], words[1]);
	}
	report(control, REPORT_STARTED, (int)child, 0);
	pump(&command, fds, (int)child);
}
