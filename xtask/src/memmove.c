/*
 * memcpy and memmove for x86-64. musl's take `rep movsq`, which needs tens of cycles to begin; nearly all that is copied
 * here are a few bytes.
 */
#include <stddef.h>
#include <stdint.h>

/* At any address. */
typedef unsigned short two __attribute__((aligned(1), may_alias));
typedef unsigned int four __attribute__((aligned(1), may_alias));
typedef unsigned long long eight __attribute__((aligned(1), may_alias));
typedef long long sixteen __attribute__((vector_size(16), aligned(1), may_alias));

/* The first bytes and the last ones, which may overlap. They are read before any is written. */
#define ENDS(type) \
	do { \
		type first = *(const type *)from, last = *(const type *)(from + size - sizeof last); \
		*(type *)to = first; \
		*(type *)(to + size - sizeof last) = last; \
	} while (0)

void *memmove(void *destination, const void *source, size_t size)
{
	char *to = destination;
	const char *from = source;
	if (size > 2 * sizeof(sixteen)) {
		size_t last_at = size - sizeof(sixteen);
		sixteen first = *(const sixteen *)from, last = *(const sixteen *)(from + last_at);
		/* Upwards unless the destination begins within the source. */
		if ((uintptr_t)to - (uintptr_t)from >= size) {
			for (size_t at = 0; at < last_at; at += sizeof first)
				*(sixteen *)(to + at) = *(const sixteen *)(from + at);
			*(sixteen *)(to + last_at) = last;
		} else {
			for (size_t at = last_at; at > 0; at -= at < sizeof first ? at : sizeof first)
				*(sixteen *)(to + at) = *(const sixteen *)(from + at);
			*(sixteen *)to = first;
		}
	} else if (size >= sizeof(sixteen)) {
		ENDS(sixteen);
	} else if (size >= sizeof(eight)) {
		ENDS(eight);
	} else if (size >= sizeof(four)) {
		ENDS(four);
	} else if (size >= sizeof(two)) {
		ENDS(two);
	} else if (size == 1) {
		*to = *from;
	}
	return destination;
}

void *memcpy(void *restrict, const void *restrict, size_t) __attribute__((alias("memmove")));
