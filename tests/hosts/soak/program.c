/*
 * A program that does for SECONDS what long-lived ones do, all at once: threads that come and go launch and replay
 * graphs, modules are loaded and unloaded, children are forked, and now and then it traces itself with CUPTI.
 *
 *   program SECONDS
 */
#include "../interposer/cuda.h"
#include <sys/wait.h>

#define CUPTI_FUNCTIONS(f) \
	f(cuptiSubscribe, (handle *, void (*)(void *, unsigned, unsigned, const void *), void *)) \
	f(cuptiUnsubscribe, (handle)) \
	f(cuptiActivityRegisterCallbacks, (void (*)(uint8_t **, size_t *, size_t *), \
		void (*)(handle, unsigned, uint8_t *, size_t, size_t))) \
	f(cuptiActivityEnable, (unsigned)) \
	f(cuptiActivityDisable, (unsigned)) \
	f(cuptiActivityFlushAll, (unsigned))
#define EACH(name, args) static int(*name) args;
CUPTI_FUNCTIONS(EACH)

enum { CONCURRENT_KERNEL = 10, BUFFER = 1 << 16 };

static struct cuda cuda;
static int (*unload)(handle);
static uint64_t end;
static atomic_ulong launches, replays, modules, forks, traces;

static int goes_on(void)
{
	return now_ns() < end;
}

static void *launch_for_a_while(void *unused)
{
	(void)unused;
	check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(cuda.context));
	for (int i = 0; i < 2000 && goes_on(); i++) {
		cuda_launch(&cuda, 1);
		atomic_fetch_add(&launches, 1);
		pause_ms(1);
	}
	return NULL;
}

/* Threads with a life of two seconds. */
static void *spawn(void *unused)
{
	(void)unused;
	while (goes_on()) {
		pthread_t threads[3];

		for (int i = 0; i < 3; i++)
			check("pthread_create", pthread_create(&threads[i], NULL, launch_for_a_while, NULL));
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
	}
	return NULL;
}

static void *replay(void *unused)
{
	handle graph, stream;

	(void)unused;
	check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(cuda.context));
	check("cuStreamCreate", cuda.cuStreamCreate(&stream, 1));
	check("cuStreamBeginCapture", cuda.cuStreamBeginCapture_v2(stream, 1));
	for (int i = 0; i < 5; i++)
		check("captured", cuda.cuLaunchKernel(cuda.function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	check("cuStreamEndCapture", cuda.cuStreamEndCapture(stream, &graph));
	check("cuGraphInstantiate", cuda.cuGraphInstantiateWithFlags(&cuda.graph, graph, 0));
	while (goes_on()) {
		check("cuGraphLaunch", cuda.cuGraphLaunch(cuda.graph, NULL));
		atomic_fetch_add(&replays, 1);
		pause_ms(5);
	}
	return NULL;
}

/* The simulated driver keeps what it knew of a module, so not too many. */
static void *load_and_unload(void *unused)
{
	(void)unused;
	check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(cuda.context));
	while (goes_on()) {
		handle module;

		check("cuModuleLoadData", cuda.cuModuleLoadData(&module, KERNEL_TEXT));
		pause_ms(100);
		check("cuModuleUnload", unload(module));
		atomic_fetch_add(&modules, 1);
		pause_ms(100);
	}
	return NULL;
}

static void *fork_children(void *unused)
{
	(void)unused;
	while (goes_on()) {
		int status;
		pid_t child = fork();

		if (!child)
			_exit(7);
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
			die("child", status);
		atomic_fetch_add(&forks, 1);
		pause_ms(700);
	}
	return NULL;
}

static void callback(void *data, unsigned domain, unsigned cbid, const void *info)
{
	(void)data, (void)domain, (void)cbid, (void)info;
}

static void request(uint8_t **buffer, size_t *size, size_t *most)
{
	*buffer = aligned_alloc(8, BUFFER);
	*size = BUFFER;
	*most = 0;
}

static void complete(handle context, unsigned stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)context, (void)stream, (void)size, (void)valid;
	free(buffer);
}

static void *trace_itself(void *library)
{
	handle subscriber;

#define LOOK_UP(name, args) *(void **)&name = dlsym(library, #name);
	CUPTI_FUNCTIONS(LOOK_UP)
	while (goes_on()) {
		for (int i = 0; i < 150 && goes_on(); i++)
			pause_ms(100);
		check("cuptiSubscribe", cuptiSubscribe(&subscriber, callback, NULL));
		check("register", cuptiActivityRegisterCallbacks(request, complete));
		check("enable", cuptiActivityEnable(CONCURRENT_KERNEL));
		pause_ms(500);
		check("disable", cuptiActivityDisable(CONCURRENT_KERNEL));
		check("flush", cuptiActivityFlushAll(1));
		check("unsubscribe", cuptiUnsubscribe(subscriber));
		atomic_fetch_add(&traces, 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	void *(*const work[])(void *) = { spawn, replay, load_and_unload, fork_children, trace_itself };
	enum { COUNT = sizeof work / sizeof *work };
	pthread_t threads[COUNT];
	handle cupti;

	end = now_ns() + (argc > 1 ? atof(argv[1]) : 1) * 1e9;
	cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda_find(&cuda);
	*(void **)&unload = dlsym(cuda.library, "cuModuleUnload");
	check("cuInit", cuda.cuInit(0));
	cuda_context(&cuda);
	cupti = dlopen("libcupti.so.13", RTLD_NOW);
	if (!cupti || !unload)
		die("something is not there", 0);
	for (int i = 0; i < COUNT; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, work[i], i == COUNT - 1 ? cupti : NULL));
	for (int i = 0; i < COUNT; i++)
		pthread_join(threads[i], NULL);
	printf("%lu launches, %lu replays, %lu modules, %lu children, %lu traces of its own\n", (unsigned long)launches,
	       (unsigned long)replays, (unsigned long)modules, (unsigned long)forks, (unsigned long)traces);
	return 0;
}
