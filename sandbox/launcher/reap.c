/* The last act of the zygote: kill what is left in the agent's cgroups and remove them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

static void kill_all(const char *folder)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/cgroup.kill", folder);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, "1", 1) < 0)
		dprintf(2, "guard: cannot write %s\n", path);
	close(fd);
}

/* Remove a cgroup and all below it; -1 while one is busy. */
static int remove_tree(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return 0;
	DIR *folder = fdopendir(fd);
	struct dirent *entry;
	while (folder && (entry = readdir(folder)))
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
			remove_tree(fd, entry->d_name);
	if (folder)
		closedir(folder);
	return unlinkat(parent, name, AT_REMOVEDIR);
}

/* The agent's own folder, where no other backend of its is left in it. */
static void remove_parent(const char *folder)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s", folder);
	char *end = strrchr(path, '/');
	if (!end || end == path)
		return;
	*end = 0;
	rmdir(path);
}

void reap_cgroups(char *const *folders)
{
	struct timespec pause = { .tv_nsec = 5000000 };

	for (char *const *folder = folders; *folder; folder++)
		kill_all(*folder);
	for (int tries = 0; tries < 1000; tries++) {
		int busy = 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		for (char *const *folder = folders; *folder; folder++) {
			busy |= remove_tree(AT_FDCWD, *folder) < 0 && access(*folder, F_OK) == 0;
			remove_parent(*folder);
		}
		if (!busy)
			return;
		nanosleep(&pause, NULL);
	}
}
