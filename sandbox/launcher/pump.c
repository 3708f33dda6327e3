/* The pump: copies a command's streams, cuts what is past the limit, forwards signals, reports its end.
 *
 * It outlives the command while some other process of the sandbox holds the streams, and drains them, so that a
 * server left in the background is not killed by SIGPIPE.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

enum { BUFFER = 65536, CHUNK = 4096 /* PIPE_BUF: what POLLOUT promises */, LAST = 1 << 20 };

struct flow {
	int from, to; /* -1: closed */
	size_t at, have;
	char data[BUFFER];
};

static struct flow in, out[2];
static uint64_t output_bytes, output_left;
static int output_cut, output_error, pid, tty, ended;

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void tell(int control, uint32_t kind, int value)
{
	struct report words = { .kind = kind, .value = value, .detail = output_error,
				.cut = (uint32_t)output_cut, .output = output_bytes };

	send_with_fds(control, &words, sizeof(words), NULL, 0);
}

/* Take what is there; past the limit it is counted and dropped. 0 when there was nothing. */
static size_t fill_output(struct flow *flow)
{
	ssize_t got = read(flow->from, flow->data, BUFFER);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (got <= 0) { /* EIO: the last slave of the terminal was closed */
		shut(&flow->from);
		return 0;
	}
	output_bytes += (uint64_t)got;
	uint64_t keep = (uint64_t)got < output_left ? (uint64_t)got : output_left;
	if (keep < (uint64_t)got)
		output_cut = 1;
	output_left -= keep;
	flow->at = 0;
	flow->have = flow->to >= 0 ? keep : 0;
	return (size_t)got;
}

static void fill_input(struct flow *flow)
{
	ssize_t got = read(flow->from, flow->data, BUFFER);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	flow->at = 0;
	flow->have = got > 0 ? (size_t)got : 0;
	if (got > 0)
		return;
	shut(&flow->from);
	if (tty) { /* end of file, as a terminal says it */
		flow->data[0] = 4;
		flow->have = 1;
	}
}

/* Nobody reads any more: the writer shall feel it, as without the guard. */
static void cut_off(struct flow *flow)
{
	shut(&flow->to);
	shut(&flow->from);
	if (tty)
		shut(&in.to);
}

static void spill(struct flow *flow)
{
	size_t size = flow->have < CHUNK ? flow->have : CHUNK;
	ssize_t done = write(flow->to, flow->data + flow->at, size);

	if (done < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (done < 0) {
		if (errno != EPIPE && flow != &in) /* a reader that stops is no loss to it */
			output_error = errno;
		flow->have = 0;
		cut_off(flow);
		return;
	}
	flow->at += (size_t)done;
	flow->have -= (size_t)done;
}

static int foreground(void)
{
	int group = 0;

	if (tty && out[0].from >= 0 && ioctl(out[0].from, TIOCGPGRP, &group) == 0 && group > 0)
		return group;
	return pid;
}

/* 0 when the agent has gone. */
static int take_order(int control)
{
	struct order order;
	int fds[FDS_MAX], count;
	int got = receive_with_fds(control, &order, sizeof(order), fds, &count);

	for (int i = 0; i < count; i++)
		close(fds[i]);
	if (got < 0)
		return errno == EINTR || errno == EAGAIN;
	if (got != sizeof(order))
		return got != 0;
	if (order.kind == ORDER_SIGNAL && !ended)
		kill(-foreground(), order.a);
	if (order.kind == ORDER_RESIZE && tty && out[0].from >= 0) {
		struct winsize size = { .ws_row = (unsigned short)order.a, .ws_col = (unsigned short)order.b };
		ioctl(out[0].from, TIOCSWINSZ, &size);
	}
	return 1;
}

static void flush(struct flow *flow)
{
	struct pollfd ready = { .fd = flow->to, .events = POLLOUT };

	while (flow->have && flow->to >= 0 && poll(&ready, 1, 10000) > 0)
		spill(flow);
	flow->have = 0;
}

/* What the command wrote before it ended; not what others go on writing for ever. */
static void drain_last(struct flow *flow)
{
	size_t total = 0, got;

	do {
		flush(flow);
		got = flow->from >= 0 ? fill_output(flow) : 0;
		total += got;
	} while (got && total < LAST);
	flush(flow);
}

static void finish(int control, const siginfo_t *info)
{
	int code = info->si_code == CLD_EXITED ? (info->si_status & 0xff) << 8 : info->si_status & 0x7f;

	ended = 1;
	for (int i = 0; i < 2; i++)
		drain_last(&out[i]);
	for (int i = 0; i < 2; i++)
		shut(&out[i].to);
	shut(&in.from);
	if (!tty)
		shut(&in.to);
	waitpid(pid, NULL, WNOHANG);
	tell(control, REPORT_ENDED, code);
}

static void child_changed(int control, int signals)
{
	struct signalfd_siginfo ignored;
	siginfo_t info = { 0 };

	while (read(signals, &ignored, sizeof(ignored)) > 0)
		;
	if (ended || waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) < 0 || !info.si_pid)
		return;
	if (info.si_code == CLD_STOPPED) {
		waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG);
		tell(control, REPORT_STOPPED, info.si_status);
		return;
	}
	finish(control, &info);
}

static int watch(struct pollfd *set, int fd, short events)
{
	set->fd = fd;
	set->events = events;
	set->revents = 0;
	return fd >= 0;
}

static void turn(int control, int signals)
{
	enum { CONTROL, SIGNALS, IN_FROM, IN_TO, OUT_FROM, OUT_TO = OUT_FROM + 2, ALL = OUT_TO + 2 };
	struct pollfd set[ALL];

	watch(&set[CONTROL], ended ? -1 : control, POLLIN);
	watch(&set[SIGNALS], signals, POLLIN);
	watch(&set[IN_FROM], in.have || in.to < 0 ? -1 : in.from, POLLIN);
	watch(&set[IN_TO], tty && !in.have ? -1 : in.to, in.have ? POLLOUT : 0);
	for (int i = 0; i < 2; i++) {
		watch(&set[OUT_FROM + i], out[i].have ? -1 : out[i].from, POLLIN);
		watch(&set[OUT_TO + i], out[i].to, out[i].have ? POLLOUT : 0);
	}
	if (poll(set, ALL, -1) < 0)
		return;
	if (set[CONTROL].revents && !take_order(control)) {
		kill(-pid, SIGKILL);
		_exit(0);
	}
	for (int i = 0; i < 2; i++) {
		if (set[OUT_TO + i].revents && out[i].have)
			spill(&out[i]);
		else if (set[OUT_TO + i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
			cut_off(&out[i]);
		}
		if (set[OUT_FROM + i].revents && out[i].from >= 0)
			fill_output(&out[i]);
	}
	if (set[IN_TO].revents && in.have)
		spill(&in);
	else if (set[IN_TO].revents & POLLERR)
		shut(&in.to);
	if (set[IN_FROM].revents && in.to >= 0)
		fill_input(&in);
	if (!tty && in.from < 0 && !in.have)
		shut(&in.to);
	if (set[SIGNALS].revents)
		child_changed(control, signals);
}

void pump(const struct command *command, const int *fds, int child)
{
	sigset_t set;

	pid = child;
	tty = command->tty;
	output_left = command->output_limit < 0 ? UINT64_MAX : (uint64_t)command->output_limit;
	in.from = fds[EXEC_HOST_IN];
	in.to = fds[EXEC_OUR_IN];
	for (int i = 0; i < 2; i++) {
		out[i].from = fds[EXEC_OUR_OUT + i];
		out[i].to = fds[EXEC_HOST_OUT + i];
		fcntl(out[i].from, F_SETFL, O_NONBLOCK);
	}
	fcntl(in.to, F_SETFL, tty ? O_RDWR | O_NONBLOCK : O_WRONLY | O_NONBLOCK);
	if (tty) {
		shut(&out[1].from);
		shut(&out[1].to);
	}
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	int control = fds[EXEC_CONTROL];
	child_changed(control, signals); /* it may have ended before the signal was blocked */
	while (!ended || out[0].from >= 0 || out[1].from >= 0)
		turn(control, signals);
	_exit(0);
}
