/*
 * Launches from several threads with a stream each: as fast as they go, or each at its part of a given rate.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "launch_cost.h"

/* A paced thread launches what is due this often, at most so many before it looks at the clock again. */
#define TICK_NS 1000000
#define PIECE 16

struct worker {
	/* A second, 0: as fast as it goes. */
	double rate;
	/* So much later than the first it looks, when paced: threads of a program do not go in step. */
	long phase_ns;
	long launches;
	/* In which the launches were made, when paced. */
	double took_ns;
	/* Counters of different threads share no cache line. */
	char apart[128 - 2 * sizeof(double) - 2 * sizeof(long)];
};

static pthread_barrier_t start_line;
static volatile int stop;

static void launch(CUstream stream, long count)
{
	for (long call = 0; call < count; call++)
		CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void launch_all_the_time(struct worker *worker, CUstream stream)
{
	while (!stop) {
		launch(stream, EAGER_CHUNK);
		worker->launches += EAGER_CHUNK;
		CHECK(cuStreamSynchronize(stream));
	}
}

static void later(struct timespec *time, long ns)
{
	time->tv_nsec += ns;
	if (time->tv_nsec >= 1000000000)
		time->tv_sec++, time->tv_nsec -= 1000000000;
}

/* By the clock, for all the time: what was late is made up for, so that only a rate that cannot be kept shows. */
static void launch_what_is_due(struct worker *worker, CUstream stream)
{
	/* Else a sleep is up to 50 us longer. */
	prctl(PR_SET_TIMERSLACK, 1);
	struct timespec tick;
	clock_gettime(CLOCK_MONOTONIC, &tick);
	double begin = now_ns();
	later(&tick, worker->phase_ns);
	while (!stop) {
		double look = now_ns();
		long due = (long)((look - begin) * 1e-9 * worker->rate) - worker->launches;
		if (due > PIECE)
			due = PIECE;
		launch(stream, due);
		worker->launches += due;
		/* Who keeps up has done what was due at the look; who does not needs the time until now for it. */
		worker->took_ns = (due < PIECE ? look : now_ns()) - begin;
		if (due == PIECE)
			continue;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &tick, NULL);
		later(&tick, TICK_NS);
	}
}

static void *run(void *data)
{
	struct worker *worker = data;
	CUstream own;
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&own, 1));
	pthread_barrier_wait(&start_line);
	if (worker->rate > 0)
		launch_what_is_due(worker, own);
	else
		launch_all_the_time(worker, own);
	CHECK(cuStreamSynchronize(own));
	return NULL;
}

static double cost_at(int count, double seconds, double rate)
{
	static struct worker workers[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	stop = 0;
	CHECK(pthread_barrier_init(&start_line, NULL, (unsigned)count + 1));
	for (int at = 0; at < count; at++) {
		workers[at] = (struct worker){ .rate = rate / count, .phase_ns = (long)TICK_NS * at / count };
		CHECK(pthread_create(&threads[at], NULL, run, &workers[at]));
	}
	pthread_barrier_wait(&start_line);
	double begin = now_ns();
	usleep((useconds_t)(seconds * 1e6));
	stop = 1;
	long all = 0;
	double per_ns = 0;
	for (int at = 0; at < count; at++) {
		CHECK(pthread_join(threads[at], NULL));
		all += workers[at].launches;
		if (workers[at].took_ns > 0)
			per_ns += (double)workers[at].launches / workers[at].took_ns;
	}
	double took = now_ns() - begin;
	pthread_barrier_destroy(&start_line);
	return rate > 0 ? 1 / per_ns : took / (double)all;
}

double cost_of_threads(int count, double seconds)
{
	return cost_at(count, seconds, 0);
}

double cost_of_paced_threads(int count, double seconds)
{
	return cost_at(count, seconds, PACED_RATE);
}
