/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Which handler a system call's return goes to, by number in each table, and for which results.
 * Numbers are those of asm/unistd_64.h and asm/unistd_32.h (checked by tests/kernel); -: not in that table.
 *
 * CALL(handler, when, x86-64 number, i386 number)
 */
#pragma once

#define NONE 1023
#define CALLS(CALL) \
	CALL(open, ALWAYS, 2, 5) \
	CALL(creat, ALWAYS, 85, 8) \
	CALL(openat, ALWAYS, 257, 295) \
	CALL(openat2, ALWAYS, 437, 437) \
	CALL(stat, FAILED, 4, 106)            /* stat */ \
	CALL(stat, FAILED, 6, 107)            /* lstat */ \
	CALL(stat, FAILED, 21, 33)            /* access */ \
	CALL(stat, FAILED, 89, 85)            /* readlink */ \
	CALL(stat, FAILED, NONE, 195)         /* stat64 */ \
	CALL(stat, FAILED, NONE, 196)         /* lstat64 */ \
	CALL(stat, FAILED, 80, 12)            /* chdir */ \
	CALL(statat, FAILED, 262, 300)        /* newfstatat, fstatat64 */ \
	CALL(statat, FAILED, 267, 305)        /* readlinkat */ \
	CALL(statat, FAILED, 269, 307)        /* faccessat */ \
	CALL(statat, FAILED, 439, 439)        /* faccessat2 */ \
	CALL(statat, FAILED, 332, 383)        /* statx */ \
	CALL(getdents, MOVED, 78, 141) \
	CALL(getdents, MOVED, 217, 220)       /* getdents64 */ \
	CALL(write, MOVED, 1, 4) \
	CALL(write, MOVED, 20, 146)           /* writev */ \
	CALL(write, MOVED, 18, 181)           /* pwrite64 */ \
	CALL(write, MOVED, 296, 334)          /* pwritev */ \
	CALL(write, MOVED, 328, 379)          /* pwritev2 */ \
	CALL(vmsplice, MOVED, 278, 316) \
	CALL(sendfile, ALWAYS, 40, 187) \
	CALL(sendfile, ALWAYS, NONE, 239)     /* sendfile64 */ \
	CALL(splice, ALWAYS, 275, 313) \
	CALL(tee, MOVED, 276, 315) \
	CALL(copy_range, ALWAYS, 326, 377) \
	CALL(ioctl, ALWAYS, 16, 54) \
	CALL(mmap, DONE, 9, 192)              /* mmap, mmap2 */ \
	CALL(old_mmap, DONE, NONE, 90) \
	CALL(read, MOVED, 0, 3) \
	CALL(read, MOVED, 17, 180)            /* pread64 */ \
	CALL(read, MOVED, 19, 145)            /* readv */ \
	CALL(read, MOVED, 295, 333)           /* preadv */ \
	CALL(read, MOVED, 327, 378)           /* preadv2 */ \
	CALL(ftruncate, ALWAYS, 77, 93) \
	CALL(ftruncate, ALWAYS, NONE, 194)    /* ftruncate64 */ \
	CALL(fallocate, ALWAYS, 285, 324) \
	CALL(fchmod, ALWAYS, 91, 94) \
	CALL(fchown, ALWAYS, 93, 95) \
	CALL(fchown, ALWAYS, NONE, 207)       /* fchown32 */ \
	CALL(fsetxattr, ALWAYS, 190, 228) \
	CALL(fsetxattr, ALWAYS, 199, 237)     /* fremovexattr */ \
	CALL(truncate, ALWAYS, 76, 92) \
	CALL(truncate, ALWAYS, NONE, 193)     /* truncate64 */ \
	CALL(chmod, ALWAYS, 90, 15) \
	CALL(fchmodat, ALWAYS, 268, 306) \
	CALL(fchmodat, ALWAYS, 452, 452)      /* fchmodat2 */ \
	CALL(chown, ALWAYS, 92, 182) \
	CALL(chown, ALWAYS, 94, 16)           /* lchown */ \
	CALL(chown, ALWAYS, NONE, 212)        /* chown32 */ \
	CALL(chown, ALWAYS, NONE, 198)        /* lchown32 */ \
	CALL(fchownat, ALWAYS, 260, 298) \
	CALL(setxattr, ALWAYS, 188, 226) \
	CALL(setxattr, ALWAYS, 189, 227)      /* lsetxattr */ \
	CALL(setxattr, ALWAYS, 197, 235)      /* removexattr */ \
	CALL(setxattr, ALWAYS, 198, 236)      /* lremovexattr */ \
	CALL(setxattrat, ALWAYS, 463, 463) \
	CALL(setxattrat, ALWAYS, 466, 466)    /* removexattrat */ \
	CALL(utimes, ALWAYS, 132, 30)         /* utime */ \
	CALL(utimes, ALWAYS, 235, 271)        /* utimes */ \
	CALL(utimesat, ALWAYS, 261, 299)      /* futimesat */ \
	CALL(utimesat, ALWAYS, 280, 320)      /* utimensat */ \
	CALL(utimesat, ALWAYS, NONE, 412)     /* utimensat_time64 */ \
	CALL(rename, ALWAYS, 82, 38) \
	CALL(renameat, ALWAYS, 264, 302) \
	CALL(renameat2, ALWAYS, 316, 353) \
	CALL(link, ALWAYS, 86, 9) \
	CALL(linkat, ALWAYS, 265, 303) \
	CALL(symlink, ALWAYS, 88, 83) \
	CALL(symlinkat, ALWAYS, 266, 304) \
	CALL(unlink, ALWAYS, 87, 10) \
	CALL(rmdir, ALWAYS, 84, 40) \
	CALL(unlinkat, ALWAYS, 263, 301) \
	CALL(mkdir, ALWAYS, 83, 39) \
	CALL(mkdirat, ALWAYS, 258, 296) \
	CALL(mknod, ALWAYS, 133, 14) \
	CALL(mknodat, ALWAYS, 259, 297) \
	CALL(mount, ALWAYS, 165, 21) \
	CALL(umount, ALWAYS, 166, 52)         /* umount2 */ \
	CALL(umount, ALWAYS, NONE, 22) \
	CALL(move_mount, ALWAYS, 429, 429) \
	CALL(open_tree, ALWAYS, 428, 428) \
	CALL(open_tree, ALWAYS, 467, 467)     /* open_tree_attr */ \
	CALL(fsopen, ALWAYS, 430, 430) \
	CALL(pivot_root, ALWAYS, 155, 217) \
	CALL(chroot, ALWAYS, 161, 61) \
	CALL(memfd, ALWAYS, 319, 356) \
	CALL(execve, FAILED, 59, 11) \
	CALL(execveat, FAILED, 322, 358) \
	CALL(clone, FAILED, 56, 120) \
	CALL(clone3, FAILED, 435, 435) \
	CALL(socket, ALWAYS, 41, 359) \
	CALL(connect, ALWAYS, 42, 362) \
	CALL(bind, ALWAYS, 49, 361) \
	CALL(listen, ALWAYS, 50, 363) \
	CALL(accept, MOVED, 43, NONE) \
	CALL(accept, MOVED, 288, 364)         /* accept4 */ \
	CALL(sendto, ALWAYS, 44, 369) \
	CALL(sendmsg, ALWAYS, 46, 370) \
	CALL(sendmmsg, ALWAYS, 307, 345) \
	CALL(socketcall, ALWAYS, NONE, 102) \
	CALL(ptrace, ALWAYS, 101, 26) \
	CALL(vm_access, ALWAYS, 310, 347)     /* process_vm_readv */ \
	CALL(vm_access, ALWAYS, 311, 348)     /* process_vm_writev */ \
	CALL(kill, FAILED, 62, 37) \
	CALL(kill, FAILED, 200, 238)          /* tkill */ \
	CALL(tgkill, FAILED, 234, 270) \
	CALL(kill, FAILED, 129, 178)          /* rt_sigqueueinfo */ \
	CALL(tgkill, FAILED, 297, 335)        /* rt_tgsigqueueinfo */ \
	CALL(pidfd_signal, FAILED, 424, 424) \
	CALL(setns, ALWAYS, 308, 346) \
	CALL(unshare, ALWAYS, 272, 310) \
	CALL(bpf, ALWAYS, 321, 357) \
	CALL(perf_open, ALWAYS, 298, 336) \
	CALL(module, ALWAYS, 175, 128)        /* init_module */ \
	CALL(module, ALWAYS, 176, 129)        /* delete_module */ \
	CALL(finit_module, ALWAYS, 313, 350) \
	CALL(module, ALWAYS, 246, 283)        /* kexec_load */ \
	CALL(module, ALWAYS, 320, NONE)       /* kexec_file_load */ \
	CALL(keyctl, ALWAYS, 250, 288) \
	CALL(keyctl, ALWAYS, 248, 286)        /* add_key */ \
	CALL(keyctl, ALWAYS, 249, 287)        /* request_key */ \
	CALL(userfaultfd, ALWAYS, 323, 374) \
	CALL(handle_open, ALWAYS, 304, 342) \
	CALL(pidfd_getfd, ALWAYS, 438, 438) \
	CALL(io_uring, ALWAYS, 425, 425)

/* Those that x32 numbers differently (asm/unistd_x32.h, without its bit); the rest are as native. */
#define X32_CALLS(CALL) \
	CALL(ioctl, ALWAYS, 514) \
	CALL(read, MOVED, 515) \
	CALL(write, MOVED, 516) \
	CALL(sendmsg, ALWAYS, 518) \
	CALL(execve, FAILED, 520) \
	CALL(ptrace, ALWAYS, 521) \
	CALL(kill, FAILED, 524) \
	CALL(module, ALWAYS, 528) \
	CALL(vmsplice, MOVED, 532) \
	CALL(read, MOVED, 534) \
	CALL(write, MOVED, 535) \
	CALL(tgkill, FAILED, 536) \
	CALL(sendmmsg, ALWAYS, 538) \
	CALL(vm_access, ALWAYS, 539) \
	CALL(vm_access, ALWAYS, 540) \
	CALL(execveat, FAILED, 545) \
	CALL(read, MOVED, 546) \
	CALL(write, MOVED, 547)

/* Every handler once: its number in the jump table. */
#define HANDLERS(H) \
	H(foreign) H(open) H(creat) H(openat) H(openat2) H(stat) H(statat) H(getdents) H(write) H(vmsplice) \
	H(sendfile) H(splice) H(tee) H(copy_range) H(ioctl) H(mmap) H(old_mmap) H(read) H(ftruncate) \
	H(fallocate) H(fchmod) H(fchown) H(fsetxattr) H(truncate) H(chmod) H(fchmodat) H(chown) H(fchownat) \
	H(setxattr) H(setxattrat) H(utimes) H(utimesat) H(rename) H(renameat) H(renameat2) H(link) H(linkat) \
	H(symlink) H(symlinkat) H(unlink) H(rmdir) H(unlinkat) H(mkdir) H(mkdirat) H(mknod) H(mknodat) \
	H(mount) H(umount) H(move_mount) H(open_tree) H(fsopen) H(pivot_root) H(chroot) H(memfd) H(execve) H(execveat) H(clone) \
	H(clone3) H(socket) H(connect) H(bind) H(listen) H(accept) H(sendto) H(sendmsg) H(sendmmsg) \
	H(socketcall) H(ptrace) H(vm_access) H(kill) H(tgkill) H(pidfd_signal) H(setns) H(unshare) H(bpf) \
	H(perf_open) H(module) H(finit_module) H(keyctl) H(userfaultfd) H(handle_open) H(pidfd_getfd) \
	H(io_uring)

enum handler {
	HANDLER_none,
#define HANDLER_NUMBER(name) HANDLER_##name,
	HANDLERS(HANDLER_NUMBER)
#undef HANDLER_NUMBER
	HANDLER_COUNT,
};

/* For which results: all, failures, successes, or more than 0. */
enum when { ALWAYS, FAILED, DONE, MOVED };
