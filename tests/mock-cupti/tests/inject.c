/* A library for CUDA_INJECTION64_PATH: says when it is asked, and fails as far as it can. */
#include <dlfcn.h>
#include <stdio.h>

int InitializeInjection(void)
{
	/* The driver must bear to be initialised again from here. */
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
	printf("injected %d\n", init(0));
	return 0;
}
