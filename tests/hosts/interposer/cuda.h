/* The simulated driver's functions, found in a handle or, with LINKED, by the linker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
struct config {
	unsigned grid[3], block[3], shared;
	handle stream, attributes;
	unsigned count;
};

#define SHAPE handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **
#define CUDA_FUNCTIONS(f) \
	f(cuInit, (unsigned)) \
	f(cuDeviceGet, (int *, int)) \
	f(cuDevicePrimaryCtxRetain, (handle *, int)) \
	f(cuCtxSetCurrent, (handle)) \
	f(cuCtxSynchronize, (void)) \
	f(cuModuleLoad, (handle *, const char *)) \
	f(cuModuleLoadData, (handle *, const void *)) \
	f(cuModuleLoadDataEx, (handle *, const void *, unsigned, int *, void **)) \
	f(cuModuleLoadFatBinary, (handle *, const void *)) \
	f(cuLibraryLoadData, (handle *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
	f(cuLibraryLoadFromFile, (handle *, const char *, int *, void **, unsigned, int *, void **, unsigned)) \
	f(cuModuleGetFunction, (handle *, handle, const char *)) \
	f(cuStreamCreate, (handle *, unsigned)) \
	f(cuStreamBeginCapture_v2, (handle, int)) \
	f(cuStreamEndCapture, (handle, handle *)) \
	f(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	f(cuGraphLaunch, (handle, handle)) \
	f(cuGraphLaunch_ptsz, (handle, handle)) \
	f(cuLaunchKernel, (SHAPE, void **)) \
	f(cuLaunchKernel_ptsz, (SHAPE, void **)) \
	f(cuLaunchKernelEx, (const struct config *, handle, void **, void **)) \
	f(cuLaunchKernelEx_ptsz, (const struct config *, handle, void **, void **)) \
	f(cuLaunchCooperativeKernel, (SHAPE)) \
	f(cuLaunchCooperativeKernel_ptsz, (SHAPE))

#define MEMBER(name, args) int(*name) args;
struct cuda {
	CUDA_FUNCTIONS(MEMBER)
	handle library, context, module, function, graph, stream;
};

static void die(const char *what, int code)
{
	fflush(stdout);
	fprintf(stderr, "host: %s: %d\n", what, code);
	_exit(70);
}

static void check(const char *what, int code)
{
	if (code)
		die(what, code);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static inline void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&t, &t))
		;
}

static void cuda_find(struct cuda *c)
{
	if (!c->library)
		die("no library is open", 0);
#define FIND(name, args) *(void **)&c->name = dlsym(c->library, #name);
	CUDA_FUNCTIONS(FIND)
	if (!c->cuInit || !c->cuLaunchKernel)
		die("this is no driver", 0);
}

#define KERNEL_TEXT ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry host_kernel()\n{\n\tret;\n}\n"

static inline void cuda_context(struct cuda *c)
{
	int device;

	check("cuDeviceGet", c->cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", c->cuDevicePrimaryCtxRetain(&c->context, device));
	check("cuCtxSetCurrent", c->cuCtxSetCurrent(c->context));
	check("cuModuleLoadData", c->cuModuleLoadData(&c->module, KERNEL_TEXT));
	check("cuModuleGetFunction", c->cuModuleGetFunction(&c->function, c->module, "host_kernel"));
}

static inline void cuda_launch(struct cuda *c, long count)
{
	for (; count > 0; count--)
		check("cuLaunchKernel", c->cuLaunchKernel(c->function, 1, 1, 1, 32, 1, 1, 0, c->stream, NULL, NULL));
}
