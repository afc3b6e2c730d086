/* Finding the driver and reporting its errors. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define POINTER(name, args) CUresult(*p_##name) args;
DRIVER_FUNCTIONS(POINTER)
OPTIONAL_FUNCTIONS(POINTER)
SIMULATED_FUNCTIONS(POINTER)

#ifdef DEMO_LINKED
#define DECLARE(name, args) extern CUresult name args;
#define DECLARE_WEAK(name, args) extern CUresult name args __attribute__((weak));
DRIVER_FUNCTIONS(DECLARE)
OPTIONAL_FUNCTIONS(DECLARE_WEAK)
SIMULATED_FUNCTIONS(DECLARE_WEAK)
#define FILL(name, args) p_##name = name;

void load_driver(void)
{
	DRIVER_FUNCTIONS(FILL)
	OPTIONAL_FUNCTIONS(FILL)
	SIMULATED_FUNCTIONS(FILL)
}
#else
void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "demo: no CUDA driver: %s\n", dlerror());
		exit(1);
	}
#define FIND(name, args) *(void **)&p_##name = dlsym(library, #name);
#define REQUIRE(name, args) \
	FIND(name, args) \
	if (!p_##name) { \
		fprintf(stderr, "demo: the driver has no " #name "\n"); \
		exit(1); \
	}
	DRIVER_FUNCTIONS(REQUIRE)
	OPTIONAL_FUNCTIONS(FIND)
	SIMULATED_FUNCTIONS(FIND)
}
#endif

void check(CUresult result, const char *function)
{
	if (result == 0)
		return;
	const char *name = NULL;
	if (result > 0 && p_cuGetErrorName)
		p_cuGetErrorName(result, &name);
	if (result < 0)
		fprintf(stderr, "demo: the driver has no %s\n", function);
	else
		fprintf(stderr, "demo: %s: CUresult %d (%s)\n", function, result, name ? name : "unknown");
	exit(1);
}
