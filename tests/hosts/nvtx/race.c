// Eight threads whose first calls come at the same moment.
#include "all.h"

#define THREADS 8

static pthread_barrier_t start;

static void *racer(void *unused)
{
	pthread_barrier_wait(&start);
	nvtxMarkA("racing");
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, racer, NULL))
			return 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
