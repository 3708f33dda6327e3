/* born HOW MARK [CGROUP]: a descendant, born HOW, creates the file MARK. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void mark(const char *path)
{
	close(open(path, O_CREAT | O_WRONLY, 0600));
	_exit(0);
}

int main(int argc, char **argv)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	const char *how = argv[1];
	int ready[2];
	char byte;
	long child;

	if (!strcmp(how, "vfork")) {
		if (!(child = vfork()))
			mark(argv[2]);
	} else if (!strcmp(how, "clone3") || !strcmp(how, "clone_into")) {
		if (argc > 3) {
			args.flags = CLONE_INTO_CGROUP;
			args.cgroup = open(argv[3], O_RDONLY | O_DIRECTORY);
		}
		if (!(child = syscall(SYS_clone3, &args, sizeof(args))))
			mark(argv[2]);
	} else {
		pipe(ready);
		if (!(child = fork())) {
			setsid();
			if (strcmp(how, "double") == 0 && fork())
				_exit(0);
			close(ready[0]);
			mark(argv[2]);
		}
		close(ready[1]);
		read(ready[0], &byte, 1);
	}
	waitpid(child, NULL, 0);
	return child < 0;
}
