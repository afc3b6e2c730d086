// Every call there is, once and in a fixed order. Prints what it gets back that is no handle.
#include "all.h"

static nvtxDomainHandle_t domain;
static nvtxRangeId_t open_a, open_b;

static void *elsewhere(void *unused)
{
	(void)unused;
	// Ends of ranges that another thread began, through either function.
	nvtxRangeEnd(open_b);
	nvtxDomainRangeEnd(domain, open_a);
	return NULL;
}

static void results(const char *what, int push, int pop)
{
	printf("%s %d %d\n", what, push, pop);
}

static void plain(void)
{
	nvtxEventAttributes_t a = worded("mark ex", 0xff112233);
	int push, pop;

	nvtxMarkEx(&a);
	nvtxMarkA("mark a");
	nvtxMarkW(L"mark w \u00e9\u4e2d");
	a = worded("push ex", 0x80445566);
	a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
	a.payload.ullValue = 0x123456789abcdef0;
	push = nvtxRangePushEx(&a);
	nvtxRangePushA("push a");
	nvtxRangePushW(L"push w \u4e2d");
	nvtxRangePop();
	nvtxRangePop();
	pop = nvtxRangePop();
	results("plain", push, pop);
	a = worded("start ex", 0);
	a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
	a.payload.iValue = -5;
	nvtxRangeId_t ex = nvtxRangeStartEx(&a);
	open_b = nvtxRangeStartA("start a");
	nvtxRangeId_t w = nvtxRangeStartW(L"start w");
	nvtxRangeEnd(w);
	nvtxRangeEnd(ex);
	printf("ids %d\n", ex && open_b && w && ex != open_b && w != open_b && ex != w);
}

static void payloads(void)
{
	nvtxEventAttributes_t a = worded("i64", 0);

	a.payloadType = NVTX_PAYLOAD_TYPE_INT64;
	a.payload.llValue = -2;
	nvtxMarkEx(&a);
	a = worded("f64", 0);
	a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
	a.payload.dValue = 1.5;
	nvtxMarkEx(&a);
	a = worded("u32", 0);
	a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT32;
	// The upper half is not the number's.
	a.payload.ullValue = 0xffffffff00000007;
	nvtxMarkEx(&a);
	a = worded("f32", 0);
	a.payloadType = NVTX_PAYLOAD_TYPE_FLOAT;
	a.payload.fValue = 0.5f;
	nvtxMarkEx(&a);
	a = worded("extended", 0);
	a.payloadType = (int32_t)0xDFBD0009;
	a.reserved0 = 1;
	nvtxMarkEx(&a);
}

static void domains(void)
{
	domain = nvtxDomainCreateA("test.domain");
	nvtxDomainHandle_t wide = nvtxDomainCreateW(L"test.w\u00efde");
	nvtxDomainHandle_t same = nvtxDomainCreateA("test.domain");
	nvtxStringHandle_t text = nvtxDomainRegisterStringA(domain, "registered");
	nvtxStringHandle_t text_w = nvtxDomainRegisterStringW(wide, L"registered \u4e2d");
	nvtxEventAttributes_t a = registered(text);
	int push, pop;

	nvtxDomainNameCategoryA(domain, 1, "category");
	nvtxDomainNameCategoryW(domain, 2, L"category w");
	nvtxNameCategoryA(3, "plain category");
	nvtxNameCategoryW(4, L"plain category w");
	a.category = 1;
	nvtxDomainMarkEx(domain, &a);
	a = registered(text_w);
	push = nvtxDomainRangePushEx(wide, &a);
	// A string of one domain in another.
	a = registered(text);
	nvtxDomainRangePushEx(same, &a);
	nvtxDomainRangePop(same);
	pop = nvtxDomainRangePop(wide);
	results("domain", push, pop);
	a = worded("domain start", 0xff00ff00);
	open_a = nvtxDomainRangeStartEx(domain, &a);
	a = attributes();
	a.messageType = NVTX_MESSAGE_TYPE_UNICODE;
	a.message.unicode = L"default domain";
	nvtxDomainMarkEx(NULL, &a);
	nvtxDomainDestroy(same);
	a = worded("after destroy", 0);
	nvtxDomainMarkEx(domain, &a);
}

static void names(void)
{
	nvtxResourceAttributes_t r;

	nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), "main thread");
	nvtxNameOsThreadW(999999, L"other thread");
	nvtxNameCuDeviceA(3, "device 3");
	nvtxNameCuContextA((CUcontext)0x10, "context");
	nvtxNameCuStreamA((CUstream)0x20, "stream 20");
	nvtxNameCuEventA((CUevent)0x30, "event");
	nvtxNameCudaDeviceA(4, "device 4");
	nvtxNameCudaStreamW((cudaStream_t)0x40, L"stream 40");
	nvtxNameCudaEventA((cudaEvent_t)0x50, "rt event");
	memset(&r, 0, sizeof(r));
	r.version = NVTX_VERSION;
	r.size = NVTX_RESOURCE_ATTRIB_STRUCT_SIZE;
	r.identifierType = NVTX_RESOURCE_TYPE_GENERIC_THREAD_NATIVE;
	r.identifier.ullValue = 888888;
	r.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
	r.message.registered = nvtxDomainRegisterStringA(domain, "resource thread");
	nvtxResourceHandle_t resource = nvtxDomainResourceCreate(domain, &r);
	printf("resource %d\n", resource != NULL);
	nvtxDomainResourceDestroy(resource);
}

static void locks(void)
{
	nvtxSyncUserAttributes_t s;

	memset(&s, 0, sizeof(s));
	s.version = NVTX_VERSION;
	s.size = sizeof(s);
	s.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
	s.message.registered = nvtxDomainRegisterStringA(domain, "lock");
	nvtxSyncUser_t user = nvtxDomainSyncUserCreate(domain, &s);
	nvtxDomainSyncUserAcquireStart(user);
	nvtxDomainSyncUserAcquireSuccess(user);
	nvtxDomainSyncUserReleasing(user);
	nvtxDomainSyncUserDestroy(user);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	(void)argv;
	if (argc > 1)
		gate();
	printf("tid %ld\n", syscall(SYS_gettid));
	plain();
	payloads();
	domains();
	names();
	locks();
	if (pthread_create(&thread, NULL, elsewhere, NULL))
		return 1;
	pthread_join(thread, NULL);
	nvtxMarkA("last");
	return 0;
}
