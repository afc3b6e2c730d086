// What NVTX's functions should never be given. Says `alive` at the end.
#include "all.h"

static void sizes(void)
{
	static const uint16_t sizes[] = { 0, 1, 3, 4, 15, 16, 31, 32, 47, 48, 49, 1000, 65535 };
	// Longer than any size that it claims.
	static char room[70000];

	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		nvtxEventAttributes_t a = worded("sized", 0xff000001);
		a.size = sizes[i];
		memcpy(room, &a, sizeof(a));
		nvtxMarkEx((nvtxEventAttributes_t *)room);
	}
}

int main(void)
{
	char *huge = malloc((1 << 20) + 1);
	nvtxEventAttributes_t a;
	static const wchar_t bad_wide[] = { L'w', 0xd800, 0x110000, L'z', 0 };

	if (!huge)
		return 1;
	memset(huge, 'h', 1 << 20);
	huge[1 << 20] = 0;
	nvtxMarkA("before");
	gate();
	nvtxMarkEx(NULL);
	nvtxMarkA(NULL);
	nvtxMarkW(NULL);
	nvtxRangePushEx(NULL);
	nvtxRangePushA(NULL);
	nvtxRangePop();
	nvtxRangePop();
	// More pops than pushes, ends of what was never begun.
	printf("extra pop %d\n", nvtxRangePop());
	nvtxRangeEnd(0);
	nvtxRangeEnd(0xdeadbeef);
	nvtxDomainRangeEnd(NULL, ~0ull);
	nvtxDomainDestroy(NULL);
	sizes();
	nvtxMarkA(huge);
	nvtxMarkA("bad \xff\xfe utf-8 \xc3");
	nvtxMarkW(bad_wide);
	a = worded("strange types", 0xff000001);
	a.colorType = 77;
	a.payloadType = 78;
	nvtxMarkEx(&a);
	a.messageType = 79;
	nvtxMarkEx(&a);
	a = registered((nvtxStringHandle_t)(uintptr_t)0x123456);
	nvtxMarkEx(&a);
	a = registered(NULL);
	nvtxMarkEx(&a);
	a = worded("strange domain", 0);
	nvtxDomainMarkEx((nvtxDomainHandle_t)(uintptr_t)0x123456, &a);
	nvtxDomainRangePushEx((nvtxDomainHandle_t)~(uintptr_t)0, &a);
	printf("null name %d\n", nvtxDomainCreateA(NULL) != NULL);
	printf("null string %d\n", nvtxDomainRegisterStringW(NULL, NULL) != NULL);
	nvtxNameOsThreadA(1, NULL);
	nvtxNameOsThreadA(77, huge);
	printf("null resource %d\n", nvtxDomainResourceCreate(NULL, NULL) != NULL);
	nvtxDomainResourceDestroy(NULL);
	nvtxDomainSyncUserDestroy(NULL);
	nvtxMarkA("after");
	free(huge);
	puts("alive");
	return 0;
}
