/*
 * Threads that come to the library as NVTX clients and as a tool do, while the process forks, before it uses CUDA.
 * Every child uses CUDA.
 *
 *   forks CHILDREN
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANG 120

static int (*initialize)(void *client);
static int (*subscribe)(void **handle, void *callback, void *data);
static int (*unsubscribe)(void *handle);
static int (*init)(unsigned flags);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		     void **);
static int (*device)(int *device, int ordinal);
static int (*retain)(void **context, int device);
static int (*make_current)(void *context);

static void *symbol(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "%s is not there\n", name);
		exit(2);
	}
	return found;
}

static void *client(void *unused)
{
	for (;;)
		initialize(NULL);
	return unused;
}

static void callback(void)
{
}

static void *tool(void *unused)
{
	void *handle;

	for (;;)
		if (!subscribe(&handle, (void *)callback, NULL))
			unsubscribe(handle);
	return unused;
}

static void child(void)
{
	void *context;
	int gpu;

	if (init(0) || device(&gpu, 0) || retain(&context, gpu) || make_current(context))
		exit(3);
	for (int i = 0; i < 5; i++)
		launch((void *)1, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	exit(0);
}

/* Kills a child that hangs. */
static int await(pid_t pid)
{
	struct timespec step = { 0, 500000 };
	int status;
	time_t began = time(NULL);

	while (!waitpid(pid, &status, WNOHANG)) {
		nanosleep(&step, NULL);
		if (time(NULL) - began > HANG)
			kill(pid, SIGKILL);
	}
	return status;
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *cupti = dlopen("libcupti.so.13", RTLD_NOW);
	void *(*const all[])(void *) = { client, client, tool };
	int children = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t thread;

	init = symbol(driver, "cuInit");
	device = symbol(driver, "cuDeviceGet");
	retain = symbol(driver, "cuDevicePrimaryCtxRetain");
	make_current = symbol(driver, "cuCtxSetCurrent");
	launch = symbol(driver, "cuLaunchKernel");
	subscribe = symbol(cupti, "cuptiSubscribe");
	unsubscribe = symbol(cupti, "cuptiUnsubscribe");
	initialize = symbol(dlopen(NULL, RTLD_NOW), "InitializeInjectionNvtx2");
	for (int i = 0; i < 3; i++)
		if (pthread_create(&thread, NULL, all[i], NULL))
			return 4;
	for (int i = 0; i < children; i++) {
		pid_t pid = fork();

		if (!pid)
			child();
		int status = pid > 0 ? await(pid) : -1;
		if (status) {
			fprintf(stderr, "child %d ended with %#x\n", i, status);
			_exit(6);
		}
	}
	_exit(0);
}
