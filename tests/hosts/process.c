/* What the host program does to its own process, see host.c. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

static void *call_exit(void *status)
{
	exit((int)(intptr_t)status);
}

static pthread_barrier_t barrier;
static int (*initialize)(void);

static void *call_initialize(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	return (void *)(intptr_t)initialize();
}

void inject(const char *path, int count)
{
	void *library = dlopen(path, RTLD_NOW);
	pthread_t threads[64];
	int good = 0;

	if (count > 64)
		die("too many threads", count);
	if (!library)
		die(dlerror(), 0);
	*(void **)&initialize = dlsym(library, "InitializeInjection");
	if (!initialize)
		die("no InitializeInjection", 0);
	pthread_barrier_init(&barrier, NULL, count);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, call_initialize, NULL);
	for (int i = 0; i < count; i++) {
		void *result;

		pthread_join(threads[i], &result);
		good += (intptr_t)result == 1;
	}
	say("injected %d\n", good);
}

static const int signals[] = { SIGTERM, SIGUSR1, SIGALRM, SIGPROF };

static sigset_t signal_set(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (unsigned i = 0; i < 4; i++)
		sigaddset(&set, signals[i]);
	return set;
}

/* Each signal to the process, one at a time, taken by sigwait. */
void signal_self(long times)
{
	sigset_t set = signal_set();
	struct timespec limit = { 5, 0 };
	long taken = 0;

	for (long i = 0; i < times; i++) {
		for (unsigned s = 0; s < 4; s++) {
			kill(getpid(), signals[s]);
			taken += sigtimedwait(&set, NULL, &limit) == signals[s];
		}
	}
	say("signals taken %ld\n", taken);
}

/* Without signals 32 and 33, which are the C library's own: it takes one of them when the first thread starts. */
static void print_signals(const char *key)
{
	char line[512];
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, key, strlen(key)))
			say("%s %llx\n", key, strtoull(line + strlen(key), NULL, 16) & ~(3ull << 31));
	if (file)
		fclose(file);
}

void print_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += entry->d_name[0] != '.' && atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(dir);
	if (dir)
		closedir(dir);
	say("descriptors %d\n", count);
}

void own_file(const char *path)
{
	const char *text = "host bytes\n";
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die(path, errno);
	if (fd > 2)
		say("own file is %d\n", fd);
}

void exit_from_thread(int status)
{
	pthread_t t;

	pthread_create(&t, NULL, call_exit, (void *)(intptr_t)status);
	pthread_join(t, NULL);
}

void close_descriptors(void)
{
	if (syscall(SYS_close_range, 3u, ~0u, 0u))
		die("close_range", errno);
}

void block_signals(void)
{
	sigset_t set = signal_set();

	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void print_masks(void)
{
	print_signals("SigBlk:");
	print_signals("SigIgn:");
	print_signals("SigCgt:");
}
