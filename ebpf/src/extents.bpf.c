/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Content that comes into a file without write(2): cloned or exchanged extents, and copies inside the kernel.
 * The ioctls are told even when refused. Numbers: linux/fs.h, xfs_fs.h, ext4's ioctl.
 */
#pragma once

#include "output.bpf.c"

#define FICLONE 0x40049409
#define FICLONERANGE 0x4020940d
#define XFS_IOC_SWAPEXT 0xc0c0586d
#define XFS_IOC_EXCHANGE_RANGE 0x40285881
#define EXT4_IOC_MOVE_EXT 0xc028660f
#define XFS_IOC_SWAPEXT_I386 0xc0bc586d /* xfs_ioctl32.h: a packed struct of 188 bytes */

/* The event of two open files: destination and source. */
__noinline int two_files(__u32 kind, __u32 to, __u32 from, __u64 command)
{
	struct scratch *s = begin(kind, CLASS_FILE);

	if (!s)
		return 0;
	s->e.a0 = command;
	object(file_at(to));
	object2(file_at(from));
	return finish();
}

HANDLER(on_ioctl)
{
	struct scratch *s = scratch();
	__u32 command, to, other = 0;
	__s64 wide = -1;

	if (!s)
		return 0;
	command = s->call.args[1];
	to = s->call.args[0];
	switch (command) {
	case FICLONE:
		return two_files(EVENT_CLONE_RANGE, to, s->call.args[2], command);
	case FICLONERANGE: /* struct file_clone_range: s64 src_fd first */
		bpf_probe_read_user(&wide, sizeof(wide), (void *)s->call.args[2]);
		return two_files(EVENT_CLONE_RANGE, to, wide, command);
	case XFS_IOC_SWAPEXT:
	case XFS_IOC_SWAPEXT_I386: { /* struct xfs_swapext: s64 sx_version, s64 sx_fdtarget, s64 sx_fdtmp */
		__s64 fds[2] = { -1, -1 };

		bpf_probe_read_user(fds, sizeof(fds), (void *)s->call.args[2] + 8);
		return two_files(EVENT_EXCHANGE_RANGE, fds[0], fds[1], command);
	}
	case XFS_IOC_EXCHANGE_RANGE: /* struct xfs_exchange_range: s32 file1_fd first */
	case EXT4_IOC_MOVE_EXT:      /* struct move_extent: u32 reserved, u32 donor_fd */
		bpf_probe_read_user(&other, sizeof(other),
				    (void *)s->call.args[2] + (command == EXT4_IOC_MOVE_EXT ? 4 : 0));
		return two_files(EVENT_EXCHANGE_RANGE, to, other, command);
	}
	return 0;
}

/* Bytes copied inside the kernel: an event where they went, or should have gone, into a file. */
__noinline int copied(__u32 to, __u32 from)
{
	struct scratch *s = scratch();
	struct file *file = (struct file *)file_at(to);
	struct inode *inode;
	__s64 bytes;

	if (!s || !file)
		return 0;
	bytes = s->call.result;
	inode = GET(file, f_inode);
	if ((GET(inode, i_mode) & S_IFMT) == S_IFREG)
		two_files(EVENT_COPY_RANGE, to, from, bytes > 0 ? bytes : 0);
	return bytes > 0 ? wrote((__u64)file, bytes, false) : 0;
}

HANDLER(on_copy_range)
{
	struct scratch *s = scratch();

	return s ? copied(s->call.args[2], s->call.args[0]) : 0;
}

HANDLER(on_sendfile)
{
	struct scratch *s = scratch();

	return s ? copied(s->call.args[0], s->call.args[1]) : 0;
}

HANDLER(on_splice)
{
	struct scratch *s = scratch();

	return s ? copied(s->call.args[2], s->call.args[0]) : 0;
}

HANDLER(on_tee)
{
	struct scratch *s = scratch();

	return s ? wrote(file_at(s->call.args[1]), s->call.result, false) : 0;
}

HANDLER(on_vmsplice)
{
	struct scratch *s = scratch();

	return s ? wrote(file_at(s->call.args[0]), s->call.result, false) : 0;
}
