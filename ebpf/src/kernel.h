/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The kernel's structures, as far as the sensor reads them. Offsets are relocated at load (CO-RE), so only
 * names and types matter here, and one object serves every kernel from 6.1 on.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#ifndef NULL
#define NULL ((void *)0)
#endif

typedef _Bool bool;
#define false 0
#define true 1

#define TS_COMPAT 0x0002              /* arch/x86/include/asm/thread_info.h: in a 32-bit system call */
#define X32_SYSCALL_BIT 0x40000000    /* arch/x86/include/uapi/asm/unistd.h */
#define FMODE_WRITE 0x2               /* include/linux/fs.h */
#define FMODE_CREATED 0x100000
#define TMPFS_MAGIC 0x01021994        /* include/uapi/linux/magic.h */
#define S_IFMT 0170000               /* include/uapi/linux/stat.h */
#define S_IFLNK 0120000
#define S_IFREG 0100000
#define S_IFDIR 0040000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node { __u64 id; };
struct cgroup_root { int hierarchy_id; };
struct cgroup;
struct cgroup_subsys_state { struct cgroup *cgroup; struct cgroup_subsys_state *parent; };
struct cgroup { struct cgroup_subsys_state self; struct kernfs_node *kn; struct cgroup_root *root; };
struct css_set { struct cgroup *dfl_cgrp; };

struct qstr { union { struct { __u32 hash; __u32 len; }; __u64 hash_len; }; const unsigned char *name; };
struct seqcount { unsigned int sequence; };
typedef struct seqcount seqcount_t;
struct seqcount_spinlock { seqcount_t seqcount; };
typedef struct seqcount_spinlock seqcount_spinlock_t;
struct hlist_bl_node { struct hlist_bl_node *next, **pprev; };
struct hlist_bl_head { struct hlist_bl_node *first; };
struct list_head { struct list_head *next; };
struct hlist_node { struct hlist_node *next; };
struct hlist_head { struct hlist_node *first; };
enum dentry_flags { DCACHE_MOUNTED = 0x8000 };
struct super_block;
typedef struct { unsigned int val; } kuid_t;
struct inode {
	unsigned short i_mode;
	kuid_t i_uid;
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_nlink;
	__u32 i_rdev;
	long long i_size;
	__u32 i_generation;
	char *i_link;
};
struct dentry {
	unsigned int d_flags;
	seqcount_spinlock_t d_seq;
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
	struct hlist_node d_sib;
	struct hlist_head d_children;
};
struct super_block { __u32 s_dev; unsigned long s_magic; struct dentry *s_root; };
struct vfsmount { struct dentry *mnt_root; };
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct list_head mnt_mounts;
	struct list_head mnt_child;
};
struct ovl_path { struct dentry *dentry; };
struct ovl_entry { unsigned int __numlower; struct ovl_path __lowerstack[1]; };
struct ovl_inode { struct inode vfs_inode; struct dentry *__upperdentry; struct ovl_entry *oe; };
struct xfs_ifork { void *if_data; signed char if_format; };
struct xfs_inode { struct xfs_ifork i_df; struct inode i_vnode; };
struct path { struct vfsmount *mnt; struct dentry *dentry; };
struct file {
	unsigned int f_mode;
	void *private_data;
	struct inode *f_inode;
	unsigned int f_flags;
	struct path f_path;
};
struct fdtable { unsigned int max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct fs_struct { struct path root; struct path pwd; };

typedef struct { int counter; } atomic_t;
typedef struct { long long counter; } atomic64_t;
struct signal_struct { atomic_t live; };
struct cred { kuid_t euid; };
struct mm_struct { unsigned long arg_start, arg_end; struct file *exe_file; };
struct thread_info { __u32 status; };
struct upid { int nr; };
struct pid { unsigned int level; struct hlist_head tasks[4]; struct upid numbers[1]; };
struct task_struct {
	struct thread_info thread_info;
	struct pid *thread_pid;
	struct mm_struct *mm;
	unsigned int flags;
	int exit_code;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 start_boottime;
	const struct cred *cred;
	struct fs_struct *fs;
	struct files_struct *files;
	struct signal_struct *signal;
	struct css_set *cgroups;
	struct hlist_node pid_links[4];
};
struct proc_inode { struct pid *pid; unsigned int fd; struct inode vfs_inode; };
struct linux_binprm { struct file *file; int argc; const char *filename; };

struct pt_regs {
	unsigned long bp, bx, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
};

/* The call's number: the kernel takes the register's low half alone, whatever the caller left in the rest. */
static __always_inline __u32 called(struct pt_regs *regs)
{
	return (__u32)regs->orig_ax;
}

struct in6_addr { union { __u8 u6_addr8[16]; __be32 u6_addr32[4]; } in6_u; };
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	atomic64_t skc_cookie;
};
struct sock { struct sock_common __sk_common; int sk_err; __u16 sk_protocol; __u16 sk_type; };
struct unix_sock { struct sock sk; struct path path; struct sock *peer; };
struct socket { short type; struct sock *sk; };
struct kernel_siginfo { struct { int si_signo; int si_errno; int si_code; }; };
struct io_kiocb { __u8 opcode; };
struct filename { const char *name; };
struct sockaddr;
struct io_open { struct filename *filename; };
struct io_unlink { struct filename *filename; };
struct io_rename { struct filename *oldpath, *newpath; };
struct io_connect { struct sockaddr *addr; int addr_len; };

#pragma clang attribute pop

extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym __weak;

/* Set by the loader where the kernel has bpf_rdonly_cast (6.2): reads are then plain loads, not helper calls. */
const volatile bool direct_reads;

/* One field of a kernel object whose address was computed; 0 where the address is bad. */
#define GET(object, field)                                                                             \
	({                                                                                             \
		typeof(object) object_ = (object);                                                     \
		typeof(object_->field) value_;                                                         \
		__builtin_memset((void *)&value_, 0, sizeof(value_));                                  \
		if (direct_reads)                                                                      \
			value_ = ((typeof(object_))bpf_rdonly_cast(                                    \
					  object_, bpf_core_type_id_kernel(*object_)))->field;         \
		else                                                                                   \
			bpf_core_read((void *)&value_, sizeof(value_), &object_->field);               \
		value_;                                                                                \
	})

/* The same of a type that may be a module's: a cast takes types of the kernel itself alone. */
#define GET_OF_MODULE(object, field)                                                                   \
	({                                                                                             \
		typeof((object)->field) value_ = 0;                                                    \
		bpf_core_read((void *)&value_, sizeof(value_), &(object)->field);                      \
		value_;                                                                                \
	})
