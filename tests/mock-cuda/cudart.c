/*
 * The few functions of libcudart that tests need, on the simulated driver: what the driver does not
 * export itself goes through its mockrt_* functions, which make the runtime's callbacks.
 */
#include "cudart.h"

#define find cudart_find

int cudaLibraryLoadData(void **library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
	int *options, void **values, unsigned count)
{
	int (*load)(void **, const void *, int *, void **, unsigned, int *, void **, unsigned) = find("cuLibraryLoadData");
	return load(library, code, jit_options, jit_values, jit_count, options, values, count);
}

int cudaLibraryGetKernel(void **kernel, void *library, const char *name)
{
	int (*get)(void **, void *, const char *) = find("cuLibraryGetKernel");
	return get(kernel, library, name);
}

int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream)
{
	int (*launch)(const void *, const unsigned *, const unsigned *, unsigned, void *, void **) = find("mockrt_launch");
	void *kernel;
	int code = cudart_kernel(&kernel, function);

	return code ? code : launch(kernel, &grid.x, &block.x, (unsigned)shared, stream, args);
}

int cudaGraphLaunch(void *exec, void *stream)
{
	int (*launch)(void *, void *) = find("mockrt_graph_launch");
	return launch(exec, stream);
}
