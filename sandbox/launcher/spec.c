/* The specification: records of u16 code, u16 count, then count times (u32 length, bytes, NUL). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "launcher.h"

int spec_open(struct spec *spec, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -1;
	spec->size = (size_t)st.st_size;
	spec->offset = 0;
	spec->data = mmap(NULL, spec->size ? spec->size : 1, PROT_READ, MAP_PRIVATE, fd, 0);
	return spec->data == MAP_FAILED ? -1 : 0;
}

static int take(struct spec *spec, void *to, size_t size)
{
	if (spec->size - spec->offset < size)
		return -1;
	memcpy(to, spec->data + spec->offset, size);
	spec->offset += size;
	return 0;
}

int spec_next(struct spec *spec, struct operation *op)
{
	if (spec->offset == spec->size)
		return 0;
	if (take(spec, &op->code, 2) < 0 || take(spec, &op->count, 2) < 0 || op->count > ARGS_MAX)
		return -1;
	for (int i = 0; i < op->count; i++) {
		if (take(spec, &op->length[i], 4) < 0 || spec->size - spec->offset <= op->length[i])
			return -1;
		op->text[i] = spec->data + spec->offset;
		spec->offset += (size_t)op->length[i] + 1;
		if (op->text[i][op->length[i]] != 0)
			return -1;
	}
	return 1;
}

long long number(const struct operation *op, int index)
{
	return index < op->count ? strtoll(op->text[index], NULL, 10) : -1;
}
