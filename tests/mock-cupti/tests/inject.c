/* A library for CUDA_INJECTION64_PATH: says when it is asked, and fails as far as it can. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int InitializeInjection(void)
{
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
	puts("injected");
	if (getenv("INJECT_INIT"))
		printf("init inside %d\n", init(0));
	return 0;
}
