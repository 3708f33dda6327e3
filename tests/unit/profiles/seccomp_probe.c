/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe FILTER CALL        installs the BPF program in FILTER, makes one call, prints its errno (0: none)
 * probe FILTER exec CMD…   installs it and runs CMD
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define X32_SYSCALL_BIT 0x40000000L

static int of(long result) { return result < 0 ? errno : 0; }

/* int $0x80 answers -errno in eax; it saves all registers but that one. */
static int int80(long nr, long a, long b, long c)
{
	int result;
	asm volatile("int $0x80" : "=a"(result) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
	return result < 0 ? -result : 0;
}

static int end_child(long pid)
{
	if (pid == 0)
		_exit(0);
	int code = of(pid);
	if (pid > 0)
		waitpid((pid_t)pid, NULL, 0);
	return code;
}

static int clone_with(unsigned long flags)
{
	return end_child(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0));
}

static int clone3_with(uint64_t flags)
{
	uint64_t arguments[11] = { [0] = flags, [4] = SIGCHLD };
	return end_child(syscall(SYS_clone3, arguments, sizeof(arguments)));
}

static void *nothing(void *unused) { return unused; }

static int thread(void)
{
	pthread_t id;
	int code = pthread_create(&id, NULL, nothing, NULL);
	return code ? code : pthread_join(id, NULL);
}

/* i386's one call for all of sockets: its arguments lie behind a pointer. */
static int socketcall(int family)
{
	uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	words[0] = (uint32_t)family;
	words[1] = SOCK_STREAM;
	words[2] = 0;
	return int80(102, 1, (long)words, 0);
}

static int ioctl_null(unsigned long command)
{
	char space[256] = { 0 };
	int file = open("/dev/null", O_RDWR | O_CLOEXEC);
	return of(syscall(SYS_ioctl, file, command, space));
}

static int attempt(const char *call)
{
	char space[256] = { 0 };
	int pair[2];
#define IS(name) (!strcmp(call, name))
	if (IS("io_uring_setup")) return of(syscall(SYS_io_uring_setup, 1, space));
	if (IS("io_uring_enter")) return of(syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0));
	if (IS("bpf")) return of(syscall(SYS_bpf, -1, space, sizeof(space)));
	if (IS("perf_event_open")) return of(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
	if (IS("userfaultfd")) return of(syscall(SYS_userfaultfd, -1));
	if (IS("keyctl")) return of(syscall(SYS_keyctl, 0, -3, 0, 0, 0));
	if (IS("add_key")) return of(syscall(SYS_add_key, "user", "x", "y", 1, -2));
	if (IS("request_key")) return of(syscall(SYS_request_key, "user", "x", NULL, 0));
	if (IS("init_module")) return of(syscall(SYS_init_module, space, 0, ""));
	if (IS("kexec_load")) return of(syscall(SYS_kexec_load, 0, 0, NULL, -1));
	if (IS("open_by_handle_at")) return of(syscall(SYS_open_by_handle_at, -1, space, 0));
	if (IS("unshare_user")) return of(unshare(CLONE_NEWUSER));
	if (IS("unshare_user_and_mount")) return of(unshare(CLONE_NEWUSER | CLONE_NEWNS));
	if (IS("unshare_files")) return of(unshare(CLONE_FILES));
	if (IS("clone_user")) return clone_with(CLONE_NEWUSER);
	if (IS("clone3_user")) return clone3_with(CLONE_NEWUSER);
	if (IS("clone3_fork")) return clone3_with(0);
	if (IS("fork")) return end_child(fork());
	if (IS("thread")) return thread();
	if (IS("getpid")) return of(syscall(SYS_getpid));
	if (IS("ptrace_traceme")) return of(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
	if (IS("ioctl_winsize")) return of(pipe(pair)) || ioctl(pair[0], TIOCGWINSZ, space) == 0 || errno != ENOTTY;
	if (IS("socket_vsock")) return of(syscall(SYS_socket, AF_VSOCK, SOCK_STREAM, 0));
	if (IS("socket_vsock_high_bits")) return of(syscall(SYS_socket, AF_VSOCK | 1UL << 40, SOCK_STREAM, 0));
	if (IS("socket_packet")) return of(syscall(SYS_socket, AF_PACKET, SOCK_DGRAM, 0));
	if (IS("socket_alg")) return of(syscall(SYS_socket, AF_ALG, SOCK_SEQPACKET, 0));
	if (IS("socket_unix")) return of(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
	if (IS("socket_inet6")) return of(syscall(SYS_socket, AF_INET6, SOCK_STREAM, 0));
	if (IS("socket_netlink")) return of(syscall(SYS_socket, AF_NETLINK, SOCK_RAW, 0));
	if (IS("tiocsti")) return ioctl_null(TIOCSTI);
	if (IS("tiocsti_high_bits")) return ioctl_null(TIOCSTI | 0xdead00000000UL);
	if (IS("ficlone")) return ioctl_null(0x40049409);
	if (IS("ficlonerange")) return ioctl_null(0x4020940d);
	if (IS("xfs_swapext")) return ioctl_null(0xc0c0586d);
	if (IS("xfs_exchange_range")) return ioctl_null(0x40285881);
	if (IS("ext4_move_ext")) return ioctl_null(0xc028660f);
	if (IS("int80_getpid")) return int80(20, 0, 0, 0);
	if (IS("int80_open")) return int80(5, 0, 0, 0);
	if (IS("int80_socket_vsock")) return int80(359, AF_VSOCK, SOCK_STREAM, 0);
	if (IS("int80_socketcall_vsock")) return socketcall(AF_VSOCK);
	if (IS("int80_socketcall_inet")) return socketcall(AF_INET);
	if (IS("x32_io_uring_setup")) return of(syscall(X32_SYSCALL_BIT | SYS_io_uring_setup, 1, space));
	if (IS("int80_io_uring_setup")) return int80(SYS_io_uring_setup, 1, 0, 0);
	if (IS("int80_unshare_user")) return int80(310, CLONE_NEWUSER, 0, 0);
	if (IS("personality_query")) return of(syscall(SYS_personality, 0xffffffffUL));
	if (IS("personality_no_randomize")) return of(syscall(SYS_personality, 0x0040000UL));
	if (!strncmp(call, "ioctl=", 6)) return ioctl_null(strtoul(call + 6, NULL, 0));
	if (!strncmp(call, "int80_ioctl=", 12)) return int80(54, 0, (long)strtoul(call + 12, NULL, 0), 0);
	/* arch/x86/entry/syscalls/syscall_64.tbl: x32 has an ioctl of its own */
	if (!strncmp(call, "x32_ioctl=", 10)) return of(syscall(X32_SYSCALL_BIT | 514, 0, strtoul(call + 10, NULL, 0), 0));
	if (IS("x32_getpid")) return of(syscall(X32_SYSCALL_BIT | SYS_getpid));
	fprintf(stderr, "no call %s\n", call);
	exit(2);
}

static void install(const char *path)
{
	static struct sock_filter program[BPF_MAXINSNS];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = read(file, program, sizeof(program));
	struct sock_fprog filter = { .len = size / sizeof(program[0]), .filter = program };
	close(file);
	if (size <= 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("install");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	install(argv[1]);
	if (!strcmp(argv[2], "exec")) {
		execvp(argv[3], argv + 3);
		perror("exec");
		return 127;
	}
	printf("%d\n", attempt(argv[2]));
	return 0;
}
