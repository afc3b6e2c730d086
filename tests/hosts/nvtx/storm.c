// Threads that push and pop, end and are replaced, while the process forks.
//
//   storm THREADS SECONDS PAUSE_US FORKS
//
// SIGUSR1 ends the seconds.
// Each process prints `PID pushes starts` in one line at its end: how many pairs of either kind it made. Every
// thread and every child ends with a pair whose events nothing follows.
#include <signal.h>
#include <sys/wait.h>

#include "all.h"

static unsigned long pushes, starts;
static int pause_us;
static double until;
static volatile sig_atomic_t over;

static void end_now(int signal)
{
	(void)signal;
	over = 1;
}

#include <time.h>
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pairs(int n)
{
	char text[64];

	for (int i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "outer %d", i);
		nvtxRangePushA(text);
		nvtxRangeId_t id = nvtxRangeStartA("across");
		nvtxRangePushA("inner");
		nvtxRangePop();
		nvtxRangeEnd(id);
		nvtxRangePop();
		__atomic_fetch_add(&pushes, 2, __ATOMIC_RELAXED);
		__atomic_fetch_add(&starts, 1, __ATOMIC_RELAXED);
		if (pause_us)
			usleep(pause_us);
	}
}

static void *brief(void *unused)
{
	pairs(20);
	return unused;
}

// Replaces itself by another thread again and again.
static void *steady(void *unused)
{
	while (!over && now() < until) {
		pthread_t next;

		if (pthread_create(&next, NULL, brief, NULL))
			exit(4);
		pthread_join(next, NULL);
		pairs(1);
	}
	return unused;
}

static void tell(void)
{
	char line[96];
	int n = snprintf(line, sizeof(line), "%d %lu %lu\n", getpid(), pushes, starts);

	if (write(1, line, n) != n)
		exit(5);
}

static void child(int i)
{
	pthread_t thread;

	__atomic_store_n(&pushes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&starts, 0, __ATOMIC_RELAXED);
	pairs(3);
	if (i % 2) {
		if (pthread_create(&thread, NULL, brief, NULL))
			exit(4);
		pthread_join(thread, NULL);
	}
	tell();
	exit(0);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int threads = atoi(argv[1]), forks = atoi(argv[4]);
	pthread_t *all = calloc(threads, sizeof(*all));

	signal(SIGUSR1, end_now);
	pause_us = atoi(argv[3]);
	nvtxMarkA("begins");
	until = now() + atof(argv[2]);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&all[i], NULL, steady, NULL))
			return 4;
	for (int i = 0; i < forks; i++) {
		usleep(1000);
		pid_t pid = fork();
		if (pid == 0)
			child(i);
		int status;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
			fprintf(stderr, "a child ended with %#x\n", status);
			return 6;
		}
	}
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	pairs(1);
	tell();
	return 0;
}
