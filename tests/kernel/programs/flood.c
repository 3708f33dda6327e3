/* flood WHAT PROCESSES CALLS [PATH]: PROCESSES processes of CALLS calls each. WHAT: open, connect, rename, mixed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int processes = atoi(argv[2]), calls = atoi(argv[3]);

	for (int p = 0; p < processes; p++) {
		if (fork())
			continue;
		char name[64];

		snprintf(name, sizeof(name), "/nowhere/%d", p);
		for (int i = 0; i < calls; i++) {
			if (argv[1][0] == 'o') {
				close(open(argv[4], O_RDONLY));
			} else if (argv[1][0] == 'c') {
				struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = 9, .sin_addr.s_addr = 1 };

				connect(-1, (void *)&to, sizeof(to));
			} else if (argv[1][0] == 'r') {
				rename(name, "/nowhere/else");
			} else if (argv[1][0] == 's') { /* strings: a new name each time */
				snprintf(name, sizeof(name), "/nowhere/%d/%d", p, i);
				open(name, O_RDONLY);
			}
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
