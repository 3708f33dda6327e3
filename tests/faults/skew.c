/* A wall clock that jumps: CLOCK_REALTIME shifted by the nanoseconds that stand in the file $SKEW_FILE, which a test
 * changes while the program runs. A time namespace cannot do that: it covers the monotonic and boot clocks only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t none;
static volatile int64_t *shift_ns = &none;

__attribute__((constructor)) static void open_shift(void)
{
	const char *name = getenv("SKEW_FILE");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	if (page != MAP_FAILED)
		shift_ns = page;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = syscall(SYS_clock_gettime, clock, now);
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t ns = now->tv_sec * SECOND + now->tv_nsec + *shift_ns;
		now->tv_sec = ns / SECOND;
		now->tv_nsec = ns % SECOND;
	}
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec spec;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &spec);
	now->tv_sec = spec.tv_sec;
	now->tv_usec = spec.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec spec;
	clock_gettime(CLOCK_REALTIME, &spec);
	if (out)
		*out = spec.tv_sec;
	return spec.tv_sec;
}
