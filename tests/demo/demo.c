/*
 * A CUDA program that only launches: kernels loaded as PTX through the driver API, by as many
 * threads, streams, modules and ways as asked for. Runs unchanged on a real driver and on the
 * simulated one. Ends with one line of what it launched; see --help.
 */
#include "driver.h"
#include "kernels.h"
#include "options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KERNELS_PER_MODULE 3
#define ELEMENTS 4096

static const char *const KERNEL_NAMES[KERNELS_PER_MODULE] = {
	"_Z6vecaddPKfS0_Pfi", "_Z5scalePfPKfi", "_ZN4demo3mixEPj"};

static struct options options;
static CUcontext context;
static CUstream *streams;
static CUmodule *modules;
static CUfunction (*kernels)[KERNELS_PER_MODULE];
static CUfunction long_kernel;
static CUdeviceptr memory[3];
static atomic_long eager_launches, graph_launches, graph_kernels, long_launches;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
	struct timespec time = {(time_t)when, (long)((when - (double)(time_t)when) * 1e9)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0)
		;
}

static void load_modules(void)
{
	char name[64];
	snprintf(name, sizeof name, "long_ns%llu", options.long_ns);
	modules = calloc((size_t)options.modules, sizeof *modules);
	kernels = calloc((size_t)options.modules, sizeof *kernels);
	for (int at = 0; at < options.modules; at++) {
		char text[sizeof KERNELS + 256];
		snprintf(text, sizeof text, KERNELS, (unsigned)at, strlen(name), name, options.long_ns);
		CHECK(cuModuleLoadData, &modules[at], text);
		for (int kernel = 0; kernel < KERNELS_PER_MODULE; kernel++)
			CHECK(cuModuleGetFunction, &kernels[at][kernel], modules[at], KERNEL_NAMES[kernel]);
	}
	char mangled[80];
	snprintf(mangled, sizeof mangled, "_Z%zu%sPj", strlen(name), name);
	CHECK(cuModuleGetFunction, &long_kernel, modules[0], mangled);
}

/* A kernel with its arguments, kept where the driver can read them. */
struct launch {
	CUfunction function;
	unsigned grid, block;
	CUdeviceptr pointers[3];
	int count;
	void *params[4];
};

static void prepare(struct launch *launch, const struct worker *worker, long number)
{
	int module = (int)(number % options.modules), which = (int)(number / options.modules % KERNELS_PER_MODULE);
	launch->count = ELEMENTS;
	memcpy(launch->pointers, memory, sizeof memory);
	if (worker->kind == LONG || which == 2) {
		launch->function = worker->kind == LONG ? long_kernel : kernels[module][2];
		launch->grid = 1;
		launch->block = 1;
		launch->params[0] = &launch->pointers[2];
		return;
	}
	launch->function = kernels[module][which];
	launch->block = 128;
	launch->grid = ELEMENTS / launch->block;
	int pointers = which == 0 ? 3 : 2;
	for (int at = 0; at < pointers; at++)
		launch->params[at] = &launch->pointers[(at + 2 * which) % 3];
	launch->params[pointers] = &launch->count;
}

static void launch_kernel(const struct worker *worker, struct launch *l, CUstream stream)
{
	CUlaunchConfig config = {{l->grid, 1, 1}, {l->block, 1, 1}, 0, stream, NULL, 0};
	switch (worker->via) {
	case VIA_KERNEL:
		if (worker->per_thread_stream)
			CHECK(cuLaunchKernel_ptsz, l->function, l->grid, 1, 1, l->block, 1, 1, 0, NULL, l->params, NULL);
		else
			CHECK(cuLaunchKernel, l->function, l->grid, 1, 1, l->block, 1, 1, 0, stream, l->params, NULL);
		break;
	case VIA_EX:
		if (worker->per_thread_stream) {
			config.stream = NULL;
			CHECK(cuLaunchKernelEx_ptsz, &config, l->function, l->params, NULL);
		} else {
			CHECK(cuLaunchKernelEx, &config, l->function, l->params, NULL);
		}
		break;
	case VIA_COOPERATIVE:
		if (worker->per_thread_stream)
			CHECK(cuLaunchCooperativeKernel_ptsz, l->function, l->grid, 1, 1, l->block, 1, 1, 0, NULL, l->params);
		else
			CHECK(cuLaunchCooperativeKernel, l->function, l->grid, 1, 1, l->block, 1, 1, 0, stream, l->params);
		break;
	case VIA_RUNTIME:
		CHECK(mockrt_launch, l->function, config.grid, config.block, 0, stream, l->params);
		break;
	}
}

static CUgraphExec make_graph(const struct worker *worker, struct launch *launches)
{
	CUgraph graph;
	CUgraphExec exec;
	for (int at = 0; at < worker->nodes; at++)
		prepare(&launches[at], worker, at);
	if (worker->capture) {
		CUstream stream;
		CHECK(cuStreamCreate, &stream, 1);
		CHECK(cuStreamBeginCapture_v2, stream, 1);
		struct worker plain = {.kind = GRAPH};
		for (int at = 0; at < worker->nodes; at++)
			launch_kernel(&plain, &launches[at], stream);
		CHECK(cuStreamEndCapture, stream, &graph);
		CHECK(cuStreamDestroy_v2, stream);
	} else {
		CHECK(cuGraphCreate, &graph, 0);
		CUgraphNode before = NULL, node;
		for (int at = 0; at < worker->nodes; at++) {
			struct launch *l = &launches[at];
			CUkernelNodeParams params = {.func = l->function, .grid = {l->grid, 1, 1}, .block = {l->block, 1, 1},
				.params = l->params};
			CHECK(cuGraphAddKernelNode_v2, &node, graph, &before, at > 0, &params);
			before = node;
		}
	}
	CHECK(cuGraphInstantiateWithFlags, &exec, graph, 0);
	CHECK(cuGraphDestroy, graph);
	return exec;
}

static void launch_graph(const struct worker *worker, CUgraphExec exec, CUstream stream)
{
	if (worker->via == VIA_RUNTIME)
		CHECK(mockrt_graph_launch, exec, stream);
	else if (worker->per_thread_stream)
		CHECK(cuGraphLaunch_ptsz, exec, NULL);
	else
		CHECK(cuGraphLaunch, exec, stream);
}

struct thread {
	pthread_t id;
	const struct worker *worker;
	int number;
};

static void *run(void *data)
{
	struct thread *thread = data;
	const struct worker *worker = thread->worker;
	struct launch launch, *nodes = NULL;
	CUgraphExec exec = NULL;
	CHECK(cuCtxSetCurrent, context);
	if (worker->kind == GRAPH) {
		nodes = calloc((size_t)worker->nodes, sizeof *nodes);
		exec = make_graph(worker, nodes);
	}
	double start = now();
	long done = 0;
	while (worker->launches < 0 || done < worker->launches) {
		if (worker->rate > 0) {
			double due = start + (double)done / worker->rate;
			if (worker->seconds > 0 && due >= start + worker->seconds)
				break;
			sleep_until(due);
		}
		if (worker->seconds > 0 && now() - start >= worker->seconds)
			break;
		CUstream stream = streams[(done + thread->number) % options.streams];
		if (worker->kind == GRAPH) {
			launch_graph(worker, exec, stream);
		} else {
			prepare(&launch, worker, done);
			launch_kernel(worker, &launch, stream);
		}
		done++;
	}
	switch (worker->kind) {
	case EAGER:
		eager_launches += done;
		break;
	case LONG:
		long_launches += done;
		break;
	case GRAPH:
		graph_launches += done;
		graph_kernels += done * worker->nodes;
		CHECK(cuCtxSynchronize);
		CHECK(cuGraphExecDestroy, exec);
		free(nodes);
	}
	return NULL;
}

static void run_threads(void)
{
	int count = 0;
	for (int at = 0; at < options.worker_count; at++)
		count += options.workers[at].threads;
	struct thread *threads = calloc((size_t)count, sizeof *threads);
	int number = 0;
	for (int at = 0; at < options.worker_count; at++) {
		for (int copy = 0; copy < options.workers[at].threads; copy++, number++) {
			threads[number].worker = &options.workers[at];
			threads[number].number = number;
			/* One thread alone is the main thread, as in most programs. */
			if (count == 1)
				run(&threads[number]);
			else if (pthread_create(&threads[number].id, NULL, run, &threads[number]) != 0) {
				fprintf(stderr, "demo: cannot start thread %d\n", number);
				exit(1);
			}
		}
	}
	for (number = 0; count > 1 && number < count; number++)
		pthread_join(threads[number].id, NULL);
	free(threads);
}

int main(int argc, char **argv)
{
	parse_options(argc, argv, &options);
	load_driver();
	CUdevice device;
	char name[128];
	CHECK(cuInit, 0);
	CHECK(cuDeviceGet, &device, 0);
	CHECK(cuDeviceGetName, name, sizeof name, device);
	if (strcmp(name, "Simulated GPU") == 0)
		puts("simulated driver");
	CHECK(cuDevicePrimaryCtxRetain, &context, device);
	CHECK(cuCtxSetCurrent, context);
	for (int at = 0; at < 3; at++)
		CHECK(cuMemAlloc_v2, &memory[at], ELEMENTS * sizeof(float));
	load_modules();
	streams = calloc((size_t)options.streams, sizeof *streams);
	for (int at = 0; at < options.streams; at++)
		CHECK(cuStreamCreate, &streams[at], 1);

	double start = now();
	run_threads();
	CHECK(cuCtxSynchronize);
	double seconds = now() - start;
	printf("launched: eager=%ld long=%ld graph=%ld graph-kernels=%ld kernels=%ld seconds=%.3f\n", eager_launches,
		long_launches, graph_launches, graph_kernels, eager_launches + long_launches + graph_kernels, seconds);
	fflush(stdout);
	if (options.hold > 0)
		sleep_until(now() + options.hold);

	for (int at = 0; at < options.streams; at++)
		CHECK(cuStreamDestroy_v2, streams[at]);
	for (int at = 0; at < options.modules; at++)
		CHECK(cuModuleUnload, modules[at]);
	for (int at = 0; at < 3; at++)
		CHECK(cuMemFree_v2, memory[at]);
	CHECK(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}
