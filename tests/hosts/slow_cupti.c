/*
 * Stands before the simulated CUPTI, which it is linked with: cuptiActivityFlushAll takes SLOW_FLUSH_MS
 * longer, all else is the simulated CUPTI's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int cuptiActivityFlushAll(unsigned flag)
{
	int (*real)(unsigned);
	const char *ms = getenv("SLOW_FLUSH_MS");
	struct timespec t = { 0, 0 };

	if (ms)
		t.tv_sec = atol(ms) / 1000;
	nanosleep(&t, NULL);
	*(void **)&real = dlsym(RTLD_NEXT, "cuptiActivityFlushAll");
	return real ? real(flag) : 999;
}
