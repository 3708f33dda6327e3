/*
 * cost WHAT ROUNDS CALLS [PATH]: the median time of one call in nanoseconds, over ROUNDS rounds of CALLS calls.
 * WHAT: getppid, write (to /dev/null), open (open and close of PATH).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rounds = atoi(argv[2]), calls = atoi(argv[3]), null = open("/dev/null", O_WRONLY);
	double *took = calloc(rounds, sizeof(*took));

	for (int r = 0; r < rounds; r++) {
		double began = now();

		for (int i = 0; i < calls; i++) {
			if (argv[1][0] == 'g')
				syscall(SYS_getppid);
			else if (argv[1][0] == 'w')
				write(null, "x", 1);
			else
				close(open(argv[4], O_RDONLY));
		}
		took[r] = (now() - began) / calls;
	}
	qsort(took, rounds, sizeof(*took), by_value);
	printf("%.1f %.1f %.1f\n", took[rounds / 2], took[rounds / 10], took[rounds * 9 / 10]);
	return 0;
}
