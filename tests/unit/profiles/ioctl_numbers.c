/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the numbers that test_policy_seccomp.py compares, as the kernel's headers and structures make them. */
#include <stdio.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <linux/btrfs.h>
#include <linux/f2fs.h>
/* fs/xfs/libxfs/xfs_fs.h, fs/xfs/xfs_ioctl32.h, fs/ext4/ext4.h and fs/ocfs2/ocfs2_fs.h are not installed: */
struct stat64b { uint64_t ino; uint16_t mode, nlink; uint32_t uid, gid, rdev; int32_t blksize; int64_t size;
	struct { int64_t sec; int32_t nsec; } times[3]; int64_t blocks; uint32_t xflags; int32_t extsize, extents;
	uint32_t gen; uint16_t low, forkoff, high; uint8_t pad[6]; uint32_t cow, mask; uint16_t state, aextents; };
struct stat32b { uint64_t ino; uint16_t mode, nlink; uint32_t uid, gid, rdev; int32_t blksize; int64_t size;
	struct { int32_t sec, nsec; } times[3]; int64_t blocks; uint32_t xflags; int32_t extsize, extents;
	uint32_t gen; uint16_t low, forkoff, high; uint8_t pad[6]; uint32_t cow, mask; uint16_t state, aextents; }
	__attribute__((packed));
struct swap { int64_t version, target, tmp, offset, length; char pad[16]; struct stat64b stat; };
struct swap32 { int64_t version, target, tmp, offset, length; char pad[16]; struct stat32b stat; }
	__attribute__((packed));
struct exchange { int32_t file1; uint32_t pad; uint64_t offset1, offset2, length, flags; };
struct commit { struct exchange range; uint64_t freshness[6]; };
struct move_ext { uint32_t reserved, donor; uint64_t start, donor_start, len, moved; };
struct reflink { uint64_t old, new, preserve; };
int main(void)
{
	printf("%u %u %u %u ", TIOCSTI, CLONE_NEWUSER, (unsigned)FICLONE, (unsigned)FICLONERANGE);
	printf("%u %u %u ", (unsigned)_IOWR('X', 109, struct swap), (unsigned)_IOW('X', 129, struct exchange),
	       (unsigned)FIDEDUPERANGE);
	printf("%u %u ", (unsigned)_IOW('X', 131, struct commit), (unsigned)_IOWR('X', 109, struct swap32));
	printf("%u %u %u ", (unsigned)_IOWR('f', 15, struct move_ext), (unsigned)F2FS_IOC_MOVE_RANGE,
	       (unsigned)_IOW('o', 4, struct reflink));
	printf("%u %u %u\n", (unsigned)BTRFS_IOC_CLONE, (unsigned)BTRFS_IOC_CLONE_RANGE,
	       (unsigned)BTRFS_IOC_FILE_EXTENT_SAME);
	return 0;
}
