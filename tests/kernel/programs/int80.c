/* int80 A B: through the 32-bit table of a 64-bit process: creates A, renames it to B, connects to 127.0.0.1:9. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>

static long call32(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c)
			 : "memory", "r8", "r9", "r10", "r11");
	return result;
}

int main(int argc, char **argv)
{
	/* Its pointers have 32 bits. */
	char *low = mmap((void *)0x10000000, 65536, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(9) };
	unsigned args[3];
	long fd;

	strcpy(low, argv[1]);
	strcpy(low + 8192, argv[2]);
	call32(6, call32(5, (long)low, O_CREAT | O_WRONLY, 0600), 0, 0);
	call32(38, (long)low, (long)low + 8192, 0);
	args[0] = AF_INET, args[1] = SOCK_STREAM, args[2] = 0;
	memcpy(low + 16384, args, sizeof(args));
	fd = call32(102, 1, (long)low + 16384, 0);
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	memcpy(low + 20480, &name, sizeof(name));
	args[0] = fd, args[1] = 0x10000000 + 20480, args[2] = sizeof(name);
	memcpy(low + 16384, args, sizeof(args));
	call32(102, 3, (long)low + 16384, 0);
	return 0;
}
