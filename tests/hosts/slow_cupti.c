/*
 * Stands before the simulated CUPTI, which it is linked with: cuptiActivityFlushAll takes SLOW_FLUSH_MS
 * longer, and cuptiSubscribe appends the nice value and the policy of its thread to the file SUBSCRIBERS; all
 * else is the simulated CUPTI's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

int cuptiActivityFlushAll(unsigned flag)
{
	int (*real)(unsigned);
	const char *ms = getenv("SLOW_FLUSH_MS");
	struct timespec t = { 0, 0 };

	if (ms) {
		t.tv_sec = atol(ms) / 1000;
		t.tv_nsec = atol(ms) % 1000 * 1000000;
	}
	nanosleep(&t, NULL);
	*(void **)&real = dlsym(RTLD_NEXT, "cuptiActivityFlushAll");
	return real ? real(flag) : 999;
}

int cuptiSubscribe(void **subscriber, void *callback, void *data)
{
	int (*real)(void **, void *, void *);
	const char *path = getenv("SUBSCRIBERS");
	FILE *file = path ? fopen(path, "a") : NULL;

	if (file) {
		fprintf(file, "%d %d\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
		fclose(file);
	}
	*(void **)&real = dlsym(RTLD_NEXT, "cuptiSubscribe");
	return real ? real(subscriber, callback, data) : 999;
}
