// Three clients in three libraries, each with a table of its own, that use each other's handles.
#include "all.h"

#define COPY(name)                                                        \
	nvtxDomainHandle_t name##_domain(const char *);                   \
	nvtxStringHandle_t name##_string(nvtxDomainHandle_t, const char *); \
	nvtxRangeId_t name##_start(nvtxDomainHandle_t, nvtxStringHandle_t); \
	void name##_end(nvtxDomainHandle_t, nvtxRangeId_t);               \
	void name##_push(nvtxDomainHandle_t, nvtxStringHandle_t);         \
	void name##_pop(nvtxDomainHandle_t);                              \
	void name##_destroy(nvtxDomainHandle_t)

COPY(one);
COPY(two);
COPY(three);

int main(void)
{
	// The first call of each client, all at the same name.
	nvtxDomainHandle_t a = one_domain("shared"), b = two_domain("shared"), c = three_domain("third");
	nvtxStringHandle_t x = one_string(a, "from one"), y = three_string(c, "from three");

	gate();
	nvtxRangeId_t first = one_start(a, y), second = two_start(b, x), third = three_start(a, x);
	printf("unique %d\n", first && second && third && first != second && first != third && second != third);
	two_push(a, y);
	three_push(b, x);
	one_pop(b);
	one_pop(a);
	// The end of one's domain is not the end of the other's.
	one_destroy(a);
	three_end(b, first);
	one_end(c, third);
	two_end(b, second);
	two_push(b, y);
	two_pop(b);
	return 0;
}
