/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The event record: the one definition that the kernel programs write and everything else reads.
 *
 * ebpf/events.py holds the numpy dtype and the Arrow schema of the same record; the loader compares both
 * with the BTF of the compiled object and refuses to start when they differ. A change here is a new
 * EVENT_SCHEMA_VERSION.
 */
#pragma once

#define EVENT_SCHEMA_VERSION 1

/* What happened. The numbers are stored: never reuse one. */
enum event_kind {
	EVENT_NONE = 0,
	/* class process */
	EVENT_FORK = 1,          /* pid is the child's; a0 = clone flags, a1 = its pid in its own pid namespace */
	EVENT_EXEC = 2,          /* path = executable, text = argv joined by NUL (redacted), path2 = as named; a0 = argc, a1 = pid in its own pid namespace */
	EVENT_EXIT = 3,          /* result = exit code; a0 = signal (0: none) */
	EVENT_MEMFD = 4,         /* path2 = name */
	/* class file; path = canonical path of the object, path2 = what the process said */
	EVENT_OPEN = 10,         /* a0 = flags (O_*), a1 = mode, result = fd or -errno */
	EVENT_RENAME = 11,       /* path = from, path2 = to, a0 = flags; object2 = the victim that was replaced */
	EVENT_LINK = 12,         /* path = existing, path2 = new name */
	EVENT_SYMLINK = 13,      /* path = new name, path2 = target text */
	EVENT_UNLINK = 14,       /* a0 = AT_* flags (AT_REMOVEDIR for rmdir) */
	EVENT_MKDIR = 15,
	EVENT_MKNOD = 16,        /* a0 = mode, a1 = device */
	EVENT_TRUNCATE = 17,     /* a0 = new length */
	EVENT_CHMOD = 18,        /* a0 = mode */
	EVENT_CHOWN = 19,        /* a0 = uid, a1 = gid */
	EVENT_MOUNT = 20,        /* path = target, path2 = source, a0 = flags; also move_mount, umount, pivot_root; open_tree of a copy and fsopen have no target */
	EVENT_CLONE_RANGE = 21,  /* FICLONE, FICLONERANGE: object = destination, object2 = source, a0 = ioctl command */
	EVENT_EXCHANGE_RANGE = 22, /* XFS_IOC_SWAPEXT, XFS_IOC_EXCHANGE_RANGE, EXT4_IOC_MOVE_EXT: both objects */
	EVENT_COPY_RANGE = 23,   /* copy_file_range, sendfile, splice into a file: object = destination, object2 = source */
	EVENT_GETDENTS = 24,     /* a folder was listed (first of a run on one open folder) */
	EVENT_MMAP_WRITE = 25,   /* shared writable mapping; a0 = prot, a1 = length */
	EVENT_WRITE = 26,        /* first write through one open description; a0 = bytes; sums are EVENT_FILE_BYTES */
	EVENT_FALLOCATE = 27,    /* a0 = mode, a1 = length */
	EVENT_XATTR = 28,        /* path2 = attribute name */
	EVENT_UTIMES = 29,
	EVENT_ACCESS = 30,       /* access, stat, readlink of a path that failed: result = -errno */
	EVENT_READ = 31,         /* first read through one open description of a *watched* object; a0 = bytes */
	/* class network */
	EVENT_CONNECT = 40,      /* address, port, family, protocol; result */
	EVENT_CONNECT_RESULT = 41, /* a0 = socket cookie; result = 0 or -errno */
	EVENT_SEND = 42,         /* sendto, sendmsg, sendmmsg that name a destination */
	EVENT_BIND = 43,
	EVENT_LISTEN = 44,
	EVENT_SOCKET = 45,       /* raw and packet sockets; a0 = family, a1 = type */
	EVENT_DNS = 46,          /* text = the name asked for, a0 = query type */
	EVENT_NET_DENIED = 47,   /* a cgroup program refused it; a0 = hook (enum net_hook) */
	EVENT_ACCEPT = 48,
	/* class privilege */
	EVENT_PTRACE = 60,       /* a0 = request, a1 = target pid */
	EVENT_VM_ACCESS = 61,    /* process_vm_readv (a0 = 0), process_vm_writev (a0 = 1); a1 = target pid */
	EVENT_SIGNAL = 62,       /* to a process outside the sender's tree: a0 = signal, a1 = target pid, a2 = target start_ns */
	EVENT_SETNS = 63,
	EVENT_UNSHARE = 64,      /* a0 = flags; clone with CLONE_NEWUSER too */
	EVENT_BPF = 65,
	EVENT_PERF_OPEN = 66,
	EVENT_MODULE = 67,
	EVENT_KEYCTL = 68,
	EVENT_USERFAULTFD = 69,
	EVENT_HANDLE_OPEN = 70,  /* open_by_handle_at: object as resolved */
	EVENT_PIDFD_GETFD = 71,
	EVENT_IO_URING = 72,     /* io_uring_setup; a0 = entries */
	EVENT_FOREIGN_ABI = 73,  /* a system call through int 0x80 or x32; a0 = its number */
	EVENT_CGROUP_LEFT = 74,  /* a watched process was moved; a0 = new cgroup id */
	EVENT_CHROOT = 75,
	EVENT_IO_URING_OP = 76,  /* submitted to a ring, its result unknown: a0 = enum io_uring_op, a1 = how many of them by this process so far (those that name nothing are told at powers of two); path2 = the name it takes (rename: the new one, text the old), address and port of a connect */
	/* class output; sums made in the kernel, sent at most every OUTPUT_PERIOD and at the end */
	EVENT_OUTPUT = 80,       /* bytes into the recorded streams: a0 = bytes since the last, a1 = writes, a2 = total */
	EVENT_FILE_BYTES = 81,   /* bytes written into files: a0 = bytes since the last, a1 = writes, a2 = total */
	/* class denial (filled by enforcement) */
	EVENT_DENIAL = 100,      /* path = object, path2 = its second, text = what was asked; a0 = how often, a1 = seq of the call's own event (0: none), a2 = 1: only told of (complain) */
	/* facts that the agent adds: they take their seq from the same counter */
	EVENT_PHASE = 120,       /* a phase began (a0 = 1) or ended (a0 = 0); phase = which */
	EVENT_STEP = 121,        /* a step began (a0 = 1) or ended (a0 = 0, result = exit code); text = step id */
	EVENT_DIFF = 122,        /* end-of-phase comparison: path, a0 = enum diff_change, a1 = size; tier diff */
	EVENT_SURVIVOR = 123,    /* pid, start_ns: alive when a phase began that it does not belong to; a0 = 1: it was ended */
	EVENT_LIMIT = 124,       /* text = which limit (output, disk, memory, pids, cpu, io, ttl); a0 = value (memory, pids, cpu, io: how often so far), a1 = limit */
	EVENT_CANARY = 125,      /* a canary was planted: path, object; text = hex SHA-256 of its content; a1 = size */
	EVENT_CANARY_MATCH = 126, /* a canary's content found: path = where, text = which canary's path */
	EVENT_GIT_FUTURE = 127,  /* the workspace's git store holds a commit that is no ancestor of HEAD: text = hex id, path2 = refs joined by NUL; a0 = 1: text = hex ids, joined by NUL, of trees and blobs that only such commits hold */
	EVENT_POLICY = 128,      /* another policy was put in force on the sandbox (a0 = 1: is about to be): text = its confinement version, path2 = what became of each tier */
};

enum event_class {
	CLASS_NONE = 0, CLASS_PROCESS = 1, CLASS_FILE = 2, CLASS_NETWORK = 3, CLASS_PRIVILEGE = 4,
	CLASS_OUTPUT = 5, CLASS_DENIAL = 6, CLASS_SENSOR = 7,
};

enum event_phase { PHASE_UNKNOWN = 0, PHASE_SETUP = 1, PHASE_AGENT = 2, PHASE_VERIFY = 3 };
enum event_actor { ACTOR_AGENT = 0, ACTOR_PLATFORM = 1 };
enum event_abi { ABI_NATIVE = 0, ABI_I386 = 1, ABI_X32 = 2 };
enum diff_change { DIFF_ADDED = 1, DIFF_MODIFIED = 2, DIFF_REMOVED = 3, DIFF_METADATA = 4 };
enum net_hook { HOOK_CONNECT = 1, HOOK_SENDMSG = 2, HOOK_EGRESS = 3, HOOK_BIND = 4, HOOK_SOCK_CREATE = 5,
		 HOOK_NAME = 6 /* the guard's resolver: text = the rule, path2 = the name asked for */ };

/* What saw or enforced it: a bit set. */
enum event_tier {
	TIER_TRACEPOINT = 1 << 0, TIER_CGROUP = 1 << 1, TIER_LSM = 1 << 2, TIER_APPARMOR = 1 << 3,
	TIER_SECCOMP = 1 << 4, TIER_MOUNT = 1 << 5, TIER_DIFF = 1 << 6, TIER_GUEST = 1 << 7, TIER_AGENT = 1 << 8,
};

enum event_flag {
	FLAG_PATH_USER = 1 << 0,      /* path is what the process said, not resolved from a kernel object */
	FLAG_PATH_CUT = 1 << 1,       /* path or path2 was cut */
	FLAG_PATH_FAULT = 1 << 2,     /* the string could not be read */
	FLAG_TEXT_CUT = 1 << 3,       /* text (argv) was cut */
	FLAG_MEMFD = 1 << 4,          /* the object or the executable is a memfd or unlinked file */
	FLAG_CREATED = 1 << 5,        /* the call made the object */
	FLAG_REDACTED = 1 << 6,       /* a credential in text was replaced */
	FLAG_THREAD = 1 << 7,         /* by a thread that is not the group's leader */
	FLAG_RECORDED_STREAM = 1 << 8, /* the object is one of the sandbox's recorded streams */
	FLAG_STRING_LOST = 1 << 9,    /* a string did not fit the string ring: its field is 0 */
	FLAG_EXECUTABLE = 1 << 10,    /* the object is a regular file with an execute bit */
	FLAG_DELETED = 1 << 11,       /* the object had no name any more */
};

struct event {
	__u64 seq;         /* per sandbox, from 1, without gaps but for losses */
	__u64 time_ns;     /* CLOCK_BOOTTIME */
	__u64 start_ns;    /* start of the process (thread group), CLOCK_BOOTTIME; (pid, start_ns) names a process */
	__u64 parent_start_ns;
	__s64 result;      /* the system call's result: >= 0, or -errno */
	__u64 a0, a1, a2;  /* by kind, see above */
	__u64 ino;         /* object: inode number */
	__u64 ino2;        /* second object */
	__u64 size;        /* object: size in bytes */
	__u32 dev, gen;    /* object: sb->s_dev, i_generation */
	__u32 dev2, gen2;
	__u32 mode;        /* object: i_mode */
	__u32 owner;       /* object: i_uid */
	__u32 slot;        /* the sensor's number of the sandbox */
	__u32 pid, tid, ppid; /* in the initial pid namespace; pid = tgid */
	__u32 uid;         /* effective, in the initial user namespace */
	__u32 step;        /* ordinal of the step that the process descends from; 0: none */
	__u32 path, path2, text, exe; /* string serials; 0: absent */
	__u16 kind;
	__u16 nr;          /* system call number in its own ABI; 0xffff: none */
	__u16 tiers;
	__u16 flags;
	__u16 port;        /* host byte order */
	__u8 class;
	__u8 phase;        /* now (the cgroup's) */
	__u8 origin_phase; /* inherited at fork */
	__u8 actor;        /* inherited at fork */
	__u8 abi;
	__u8 family;       /* AF_INET, AF_INET6, AF_UNIX, ... */
	__u8 protocol;     /* IPPROTO_* */
	__u8 reserved[7];
	__u8 address[16];  /* IPv6, or IPv4 mapped (::ffff:a.b.c.d) */
};

/* What the bytes of a string are. */
enum string_role {
	STRING_SAID = 0,   /* as the process said it, or text */
	STRING_OBJECT = 1, /* path from the root of superblock `dev` */
	STRING_JOINED = 2, /* folder's path from the root of superblock `dev`, NUL, path as the process said it */
	STRING_ARGV = 3,   /* arguments joined by NUL */
};

/* A string, sent once on its own ring: the kernel's keyed 128-bit hash of it chose the serial. */
#define STRING_MAX 4096
struct string_record {
	__u32 serial;
	__u16 length;
	__u16 slot;
	__u32 dev;
	__u32 role;
	char bytes[];
};
