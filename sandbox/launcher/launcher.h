/* The launcher: Python decides, this launches.
 *
 * One process a backend (the zygote) takes requests from its control socket, forks a small child for each, and
 * goes when the socket closes, that is: when the agent dies. Everything that it forked has asked the kernel to
 * be killed when the zygote dies, so nothing runs unwatched.
 *
 * A request is one message: struct request and descriptors: the reply socket, the specification, then what the
 * kind of request needs. The specification is a list of operations in a memory file, made by `sandbox/spec.py`.
 */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <stddef.h>
#include <stdint.h>

enum request_kind { REQUEST_START = 1, REQUEST_RUN = 2, REQUEST_EXEC = 3 };

struct request {
	uint32_t kind;
	uint32_t fd_count;
};

enum { FD_REPLY = 0, FD_SPEC = 1, FD_FIRST = 2, FDS_MAX = 64, SLOTS_MAX = 512, ARGS_MAX = 8 };

/* Descriptors that a START or RUN request hands back; the reply's `slots` says which. */
enum slot {
	SLOT_INIT = 0,   /* pidfd of the sandbox's init */
	SLOT_ROOT = 1,   /* its root folder (O_PATH), in the namespace of the platform */
	SLOT_PTS = 2,    /* its devpts */
	SLOT_USER = 3,   /* its user namespace */
	SLOT_MOUNT = 4,  /* mount namespace without masks: phase verify and the platform */
	SLOT_MASKED = 5, /* mount namespace of phases setup and agent */
	SLOT_NET = 6,
	SLOT_TABLE = 7,  /* the mount table of a namespace that RUN joined (mountinfo) */
	SLOT_WORKSPACE_USER = 8, /* user namespace that maps the workspace's owner to root; not handed back */
	SLOT_TREE = 9,   /* from here: detached mounts; not handed back */
};

struct reply {
	int32_t error; /* errno; 0: done */
	uint32_t op;   /* which operation failed, from 0 */
	uint32_t slots;
	uint32_t nanoseconds[5]; /* spent by kind of operation: enum share */
};

enum share { SHARE_NAMESPACES, SHARE_MOUNTS, SHARE_TREES, SHARE_PIVOT, SHARE_FILES };

enum op {
	OP_STAGE = 1,    /* path: an empty tmpfs there, and work in it */
	OP_MKDIR = 2,    /* path mode uid gid */
	OP_MOUNT = 3,    /* type source target flags data */
	OP_USERNS = 4,   /* slot uid_map gid_map netns(0/1) max_user_namespaces(-1: leave); needs proc at "proc" */
	OP_TREE = 5,     /* slot source attributes slot-of-user-namespace(-1: none) */
	OP_PLACE = 6,    /* slot target */
	OP_ATTACH = 7,   /* descriptor target: place a detached mount that came with the request */
	OP_SYMLINK = 8,  /* target path */
	OP_NODE = 9,     /* path mode major minor uid gid */
	OP_FILE = 10,    /* path mode uid gid content */
	OP_PIVOT = 11,   /* path: the new root; the old one goes */
	OP_HOSTNAME = 12, /* name */
	OP_OPEN = 13,    /* slot path */
	OP_SPLIT = 14,   /* a second mount namespace, a copy of this one: SLOT_MOUNT, SLOT_MASKED */
	OP_JOIN = 15,    /* descriptor: enter that mount namespace */
	OP_DETACH = 16,  /* path: unmount, lazily */
	OP_ADDRESS = 17, /* descriptor of a network namespace, link, address, gateway */
	OP_TABLE = 18,   /* after OP_JOIN: keep that namespace's mount table as SLOT_TABLE */
	/* for EXEC */
	OP_ARGUMENT = 32, /* one word of the command */
	OP_ENVIRONMENT = 33,
	OP_CWD = 34,
	OP_SECCOMP = 35, /* struct sock_filter[] */
	OP_SETTINGS = 36, /* capabilities output_limit(-1: none) tty(0/1) rows columns cgroup_descriptors */
	OP_PROFILE = 37, /* name of the AppArmor profile that its exec enters */
};

struct spec {
	const char *data;
	size_t size, offset;
};

struct operation {
	uint16_t code, count;
	const char *text[ARGS_MAX]; /* NUL-terminated */
	uint32_t length[ARGS_MAX];
};

/* spec.c */
int spec_open(struct spec *spec, int fd);
int spec_next(struct spec *spec, struct operation *op); /* 1: there is one, 0: end, -1: malformed */
long long number(const struct operation *op, int index);

/* kernel.c: system calls that this libc has no wrapper for, and descriptors over a socket */
long sys_clone(uint64_t flags, int *pidfd, int cgroup);
int sys_open_tree(int dir, const char *path, unsigned int flags);
int sys_move_mount(int tree, const char *target);
int sys_mount_attributes(int tree, uint64_t set, int user_namespace);
int sys_close_range(unsigned int first);
int send_with_fds(int socket, const void *data, size_t size, const int *fds, int count);
int receive_with_fds(int socket, void *data, size_t size, int *fds, int *count);
void die_with_parent(void);

/* mounts.c */
struct build {
	const int *fds; /* of the request */
	int fd_count;
	int slots[SLOTS_MAX];
	int own; /* this process's folder of the host's /proc, once it has joined another namespace */
	struct reply reply;
};
void build_init(struct build *build, const int *fds, int fd_count);
int build_run(struct build *build, struct spec *spec);
int user_namespace(const struct operation *op, struct build *build); /* userns.c */

int link_address(int network_namespace, const struct operation *op); /* network.c */

/* start.c */
void start_sandbox(int *fds, int fd_count) __attribute__((noreturn));
void be_init(void) __attribute__((noreturn));
void run_operations(int *fds, int fd_count) __attribute__((noreturn));

/* exec.c, command.c, pump.c */
enum { EXEC_CONTROL = 0, EXEC_SPEC, EXEC_INIT, EXEC_USER, EXEC_MOUNT, EXEC_CGROUP,
       EXEC_HOST_IN, EXEC_HOST_OUT, EXEC_HOST_ERR, EXEC_CHILD_IN, EXEC_CHILD_OUT, EXEC_CHILD_ERR,
       EXEC_OUR_IN, EXEC_OUR_OUT, EXEC_OUR_ERR, EXEC_PROCS };

struct command {
	char **arguments, **environment;
	const char *cwd, *profile;
	const void *seccomp;
	uint32_t seccomp_size;
	uint64_t capabilities;
	long long output_limit;
	int tty, rows, columns, procs;
};

enum report_kind { REPORT_STARTED = 1, REPORT_FAILED = 2, REPORT_STOPPED = 3, REPORT_ENDED = 4 };
struct report {
	uint32_t kind;
	int32_t value;  /* pid; errno; signal; wait status */
	int32_t detail; /* stage of a failure; of an end: errno with which a stream of the host took no more output */
	uint32_t cut;
	uint64_t output;
};
enum stage { STAGE_ENTER = 1, STAGE_CWD = 2, STAGE_CONFINE = 3, STAGE_EXEC = 4, STAGE_PROFILE = 5 };
enum order_kind { ORDER_SIGNAL = 1, ORDER_RESIZE = 2 };
struct order {
	uint32_t kind;
	int32_t a, b;
};

void exec_command(int *fds, int fd_count) __attribute__((noreturn));
void become_command(const struct command *command, const int *fds, int status_fd) __attribute__((noreturn));
void pump(const struct command *command, const int *fds, int pid) __attribute__((noreturn));

/* reap.c */
void reap_cgroups(char *const *folders);

#endif
