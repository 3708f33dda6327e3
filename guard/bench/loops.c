// SPDX-License-Identifier: Apache-2.0
// One system call in a loop: prints nanoseconds of this process's CPU, and of the wall clock, an iteration.
//   loops getppid|write|open ITERATIONS [PATH]
//   loops flow ITERATIONS FOLDER RATE: an open and a look that fails, in turn, over many names; RATE a second of both
#define _GNU_SOURCE /* O_PATH */
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

#define FILES 16
#define NAMES 256
#define AT_ONCE 64

static char files[FILES][16], missing[NAMES][16];

static int name_files(const char *folder)
{
	if (chdir(folder))
		return fail(folder);
	for (int i = 0; i < NAMES; i++)
		sprintf(missing[i], "missing-%d", i);
	for (int i = 0; i < FILES; i++) {
		int fd;

		sprintf(files[i], "file-%d", i);
		fd = open(files[i], O_CREAT | O_WRONLY, 0666);
		if (fd < 0)
			return fail(files[i]);
		close(fd);
	}
	return 0;
}

/* Until the wall clock is where `calls` at `rate` a second would be. */
static void keep_pace(double began, double calls, double rate)
{
	double ahead = calls * 1e9 / rate - (now_ns(CLOCK_MONOTONIC) - began);
	struct timespec nap = { 0, ahead };

	if (ahead > 1e6 && ahead < 1e9)
		nanosleep(&nap, NULL);
}

static int flow(long n, const char *folder, double rate)
{
	double began;

	if (rate <= 0 || name_files(folder))
		return 1;
	began = now_ns(CLOCK_MONOTONIC);
	for (long i = 0; i < n; i++) {
		int fd = open(files[i % FILES], O_RDONLY | O_PATH);

		if (fd < 0)
			return fail(files[i % FILES]);
		close(fd);
		access(missing[i % NAMES], F_OK);
		if (i % AT_ONCE == 0)
			keep_pace(began, 2.0 * i, rate);
	}
	return 0;
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
	} else if (!strcmp(argv[1], "flow")) {
		if (flow(n, path, argc > 4 ? atof(argv[4]) : 0))
			return 1;
	} else {
		return fprintf(stderr, "unknown loop %s\n", argv[1]), 2;
	}
	printf("%.2f %.2f\n", (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / n, (now_ns(CLOCK_MONOTONIC) - wall) / n);
	return 0;
}
