/*
 * What programs call that nvcc compiled: their fat binaries and kernels are registered before main, and launched
 * by the address of a host function. Memory is not kept: nothing of the simulated driver's runs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cudart.h"

#define MOST_KERNELS 1024

static struct {
	const void *host;
	const char *name;
	void **binary;
	void *kernel;
} kernels[MOST_KERNELS];
static int kernel_count;

struct binary {
	const void *code;
	void *library;
};

void *cudart_find(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "libcudart: no %s in libcuda.so.1\n", name);
		abort();
	}
	return found;
}

#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))cudart_find(#name))

/* As the real one: the primary context of the first device. */
static int ready(void)
{
	static _Thread_local int done;
	void *context;
	int code;

	if (done)
		return 0;
	code = DRIVER(cuInit, unsigned)(0);
	if (!code)
		code = DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
	if (!code)
		code = DRIVER(cuCtxSetCurrent, void *)(context);
	done = !code;
	return code;
}

void **__cudaRegisterFatBinary(void *code)
{
	struct binary *binary = calloc(1, sizeof *binary);

	if (binary)
		binary->code = code;
	return (void **)binary;
}

void __cudaRegisterFatBinaryEnd(void **binary)
{
	(void)binary;
}

void __cudaUnregisterFatBinary(void **binary)
{
	free(binary);
}

char __cudaInitModule(void **binary)
{
	(void)binary;
	return 1;
}

void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit, void *tid,
	void *bid, void *block, void *grid, int *size)
{
	(void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)size;
	if (kernel_count == MOST_KERNELS)
		abort();
	kernels[kernel_count].host = host;
	kernels[kernel_count].name = name;
	kernels[kernel_count++].binary = binary;
}

static int load(void **kernel, int at)
{
	struct binary *binary = (struct binary *)kernels[at].binary;
	int code = ready();

	if (!code && !binary->library)
		code = DRIVER(cuLibraryLoadData, void **, const void *, int *, void **, unsigned, int *, void **, unsigned)(
			&binary->library, binary->code, NULL, NULL, 0, NULL, NULL, 0);
	if (!code && !kernels[at].kernel)
		code = DRIVER(cuLibraryGetKernel, void **, void *, const char *)(&kernels[at].kernel, binary->library,
			kernels[at].name);
	*kernel = kernels[at].kernel;
	return code;
}

int cudart_kernel(void **kernel, const void *host)
{
	for (int at = 0; at < kernel_count; at++)
		if (kernels[at].host == host)
			return load(kernel, at);
	*kernel = (void *)host;
	return 0;
}

/* Asked once per place of a launch; loading waits for the launch. */
int __cudaGetKernel(void **kernel, const void *host)
{
	*kernel = (void *)host;
	return 0;
}

int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream)
{
	return cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}

static _Thread_local struct {
	struct dim3 grid, block;
	size_t shared;
	void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream)
{
	pushed.grid = grid;
	pushed.block = block;
	pushed.shared = shared;
	pushed.stream = stream;
	return 0;
}

int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream)
{
	*grid = pushed.grid;
	*block = pushed.block;
	*shared = pushed.shared;
	*(void **)stream = pushed.stream;
	return 0;
}

int cudaMalloc(void **memory, size_t size)
{
	unsigned long long address = 0;
	int code = ready();

	if (!code)
		code = DRIVER(cuMemAlloc_v2, unsigned long long *, size_t)(&address, size);
	*memory = (void *)address;
	return code;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
	unsigned long long device = (unsigned long long)(kind == 1 ? to : from);

	if (kind == 1)
		return DRIVER(cuMemcpyHtoD_v2, unsigned long long, const void *, size_t)(device, from, size);
	return kind == 2 ? DRIVER(cuMemcpyDtoH_v2, void *, unsigned long long, size_t)(to, device, size) : 1;
}

int cudaDeviceSynchronize(void)
{
	int code = ready();

	return code ? code : DRIVER(cuCtxSynchronize, void)();
}
