// Ranges around launches, on the driver that the loader finds. NVTX is used for the first time after cuInit.
#include <dlfcn.h>

#include "all.h"

typedef void *handle;

#define FUNCTIONS(f)                                                                                            \
	f(cuInit, (unsigned))                                                                                   \
	f(cuDeviceGet, (int *, int))                                                                            \
	f(cuDevicePrimaryCtxRetain, (handle *, int))                                                            \
	f(cuCtxSetCurrent, (handle))                                                                            \
	f(cuCtxSynchronize, (void))                                                                             \
	f(cuModuleLoadData, (handle *, const void *))                                                           \
	f(cuModuleGetFunction, (handle *, handle, const char *))                                                \
	f(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, \
			   void **, void **))

#define DECLARE(name, args) static int(*name) args;
FUNCTIONS(DECLARE)

static handle context, function;

static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

static void check(int result)
{
	if (result) {
		fprintf(stderr, "the driver says %d\n", result);
		exit(7);
	}
}

static void launch(int n)
{
	for (int i = 0; i < n; i++)
		check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void *thread(void *unused)
{
	check(cuCtxSetCurrent(context));
	nvtxMarkA("before the thread's launch");
	nvtxRangePushA("of the thread");
	launch(1);
	nvtxRangePop();
	nvtxMarkA("after the thread's launch");
	return unused;
}

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	handle module;
	pthread_t other;
	int device;

	if (!cuda) {
		fprintf(stderr, "%s\n", dlerror());
		return 8;
	}
#define FIND(name, args)                                  \
	if (!(*(void **)&name = dlsym(cuda, #name))) \
		return 8;
	FUNCTIONS(FIND)
	gate();
	check(cuInit(0));
	printf("tool %s\n", getenv("NVTX_INJECTION64_PATH") ? getenv("NVTX_INJECTION64_PATH") : "none");
	check(cuDeviceGet(&device, 0));
	check(cuDevicePrimaryCtxRetain(&context, device));
	check(cuCtxSetCurrent(context));
	check(cuModuleLoadData(&module, text));
	check(cuModuleGetFunction(&function, module, "empty"));

	nvtxDomainHandle_t domain = nvtxDomainCreateA("gpu.test");
	nvtxEventAttributes_t a = worded("across", 0);
	nvtxRangePushA("outer");
	launch(3);
	for (int i = 0; i < 2; i++) {
		nvtxRangePushA("inner");
		launch(1);
		nvtxRangePop();
	}
	nvtxRangePop();
	nvtxRangePushA("nothing");
	nvtxRangePop();
	nvtxRangeId_t id = nvtxDomainRangeStartEx(domain, &a);
	launch(4);
	nvtxDomainRangeEnd(domain, id);
	launch(1);
	if (pthread_create(&other, NULL, thread, NULL))
		return 9;
	pthread_join(other, NULL);
	check(cuCtxSynchronize());
	gate();
	return 0;
}
