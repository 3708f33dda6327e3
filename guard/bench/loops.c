// SPDX-License-Identifier: Apache-2.0
// One system call in a loop: prints nanoseconds of this process's CPU, and of the wall clock, an iteration.
//   loops getppid|write|open ITERATIONS [PATH]
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	const char *path = argc > 3 ? argv[3] : "/dev/null";
	long n = argc > 2 ? atol(argv[2]) : 0;
	double cpu, wall;
	int null;

	if (argc < 3 || n <= 0)
		return fprintf(stderr, "usage: loops getppid|write|open ITERATIONS [PATH]\n"), 2;
	null = open("/dev/null", O_WRONLY);
	if (null < 0)
		return fail("/dev/null");
	cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	wall = now_ns(CLOCK_MONOTONIC);
	if (!strcmp(argv[1], "getppid")) {
		for (long i = 0; i < n; i++)
			syscall(SYS_getppid);
	} else if (!strcmp(argv[1], "write")) {
		for (long i = 0; i < n; i++)
			if (write(null, "x", 1) != 1)
				return fail("write");
	} else if (!strcmp(argv[1], "open")) {
		for (long i = 0; i < n; i++) {
			int fd = open(path, O_RDONLY);

			if (fd < 0)
				return fail(path);
			close(fd);
		}
	} else {
		return fprintf(stderr, "unknown loop %s\n", argv[1]), 2;
	}
	printf("%.2f %.2f\n", (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / n, (now_ns(CLOCK_MONOTONIC) - wall) / n);
	return 0;
}
