/* Brings the driver in: by its constructor (-DCONSTRUCTOR), or as a further link of a chain (-DNEXT). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

__attribute__((unused)) static void *must(void *found)
{
	if (!found) {
		fprintf(stderr, "plugin: %s\n", dlerror());
		abort();
	}
	return found;
}

#ifdef NEXT
/* Only this library's own RUNPATH leads to it. */
void *plugin_library(void)
{
	if (!library) {
		void *next = must(dlopen(NEXT, RTLD_NOW));
		void *(*next_library)(void) = (void *(*)(void))dlsym(next, "plugin_library");

		library = next_library ? next_library() : next;
	}
	return library;
}
#else
#ifdef CONSTRUCTOR
__attribute__((constructor)) static void begin(void)
{
	int (*init)(unsigned);

	library = must(dlopen("libcuda.so.1", RTLD_NOW));
	*(void **)&init = must(dlsym(library, "cuInit"));
	if (init(0))
		abort();
}
#endif

void *plugin_library(void)
{
	return library;
}
#endif
