/* The sandbox's end of its link: address, up, default route. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher.h"

static void set_address(struct sockaddr *to, in_addr_t address)
{
	struct sockaddr_in words = { .sin_family = AF_INET, .sin_addr.s_addr = address };

	memcpy(to, &words, sizeof(words));
}

static int configure(int fd, const char *name, in_addr_t address, in_addr_t gateway)
{
	struct ifreq request = { 0 };
	struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	set_address(&request.ifr_addr, address);
	if (ioctl(fd, SIOCSIFADDR, &request) < 0)
		return -1;
	set_address(&request.ifr_netmask, htonl(0xfffffffe));
	if (ioctl(fd, SIOCSIFNETMASK, &request) < 0)
		return -1;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
		return -1;
	set_address(&route.rt_gateway, gateway);
	set_address(&route.rt_dst, 0);
	set_address(&route.rt_genmask, 0);
	return ioctl(fd, SIOCADDRT, &route);
}

int link_address(int network_namespace, const struct operation *op)
{
	if (setns(network_namespace, CLONE_NEWNET) < 0)
		return -1;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	int done = configure(fd, op->text[1], inet_addr(op->text[2]), inet_addr(op->text[3]));
	int kept = errno;
	close(fd);
	errno = kept;
	return done;
}
