// A thread that says something all the time, also while the process ends. Prints how much it had said when that began.
#include "all.h"

static volatile unsigned long said;

static void *talk(void *unused)
{
	char text[32];

	for (;;) {
		snprintf(text, sizeof(text), "number %lu", said);
		nvtxMarkA(text);
		said++;
	}
	return unused;
}

static void at_exit(void)
{
	printf("%lu\n", said);
}

int main(void)
{
	pthread_t other;

	// The tool is there from here on, so that its end comes after ours.
	nvtxMarkA("first");
	atexit(at_exit);
	if (pthread_create(&other, NULL, talk, NULL))
		return 1;
	while (said < 100)
		sched_yield();
	return 0;
}
