/* What the two parts of the simulated libcudart share. */
#include <stddef.h>

struct dim3 {
	unsigned x, y, z;
};

/* A function of the driver. */
void *cudart_find(const char *name);
/* The kernel behind a host function; what is none is taken for the kernel itself. */
int cudart_kernel(void **kernel, const void *host);

int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream);
