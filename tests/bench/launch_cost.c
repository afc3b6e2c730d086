/*
 * What one launch call costs the thread that makes it, in ns: the median over chunks of calls, timed
 * back to back. The stream is empty when a chunk begins and a chunk is shorter than its queue, so no
 * call waits for the GPU. Several threads are in launch_threads.c. Prints one JSON object; see --help.
 * Nothing of CUDA is needed to build.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launch_cost.h"

#define DEFINE(name, parameters) int(*name) parameters;
FUNCTIONS(DEFINE)

#define GRAPH_CHUNK 32
#define CHUNKS_MAX 100000
#define ROWS_MAX 16
#define GATE_PAUSE_US 10000

static const char PTX[] =
	".version 6.3\n.target sm_75\n.address_size 64\n"
	".visible .entry empty_kernel()\n{\n\tret;\n}\n";

static const char USAGE[] =
	"usage: launch_cost [--rows ROW,...] [--seconds S] [--gate] [--stay] [--check]\n"
	"  --rows     what is measured, in this order (driver,graph:10):\n"
	"             runtime    cudaLaunchKernel, of the libcudart.so that the loader finds; null when there is none\n"
	"             driver     cuLaunchKernel\n"
	"             graph:N    cuGraphLaunch of N kernels\n"
	"             threads:N  cuLaunchKernel from N threads with a stream each: time of all by launches of all\n"
	"             paced:N    the same, each thread launching its part of 200000/s: 5000 where that is reached\n"
	"  --seconds  per row, a decimal (0.5)\n"
	"  --gate     print {\"ready\":true} and go on launching now and then until a line comes on stdin, then measure\n"
	"  --stay     end with stdin, once everything is measured\n"
	"  --check    only say which GPU there is\n"
	"Exit status: 0, 1 a call failed, 2 wrong use, 3 no driver or no GPU\n";

struct size {
	unsigned x, y, z;
};

CUfunction kernel;
static void *runtime_kernel;
static int (*runtime_launch)(const void *kernel, struct size grid, struct size block, void **params, size_t shared, CUstream stream);
static CUstream stream;
static CUgraphExec exec;
void *context;

void check(int result, const char *call)
{
	if (result) {
		fprintf(stderr, "launch_cost: %s gives %d\n", call, result);
		exit(1);
	}
}

static void no_gpu(const char *why)
{
	fprintf(stderr, "launch_cost: no GPU: %s\n", why);
	exit(3);
}

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		no_gpu(dlerror());
#define LOOK_UP(name, parameters) \
	*(void **)&name = dlsym(library, #name); \
	if (!name) \
		no_gpu("libcuda.so.1 has no " #name);
	FUNCTIONS(LOOK_UP)
	int count = 0, result = cuInit(0);
	if (result || (result = cuDeviceGetCount(&count)) || count == 0) {
		char why[64];
		snprintf(why, sizeof why, "cuInit or cuDeviceGetCount gives %d, %d devices", result, count);
		no_gpu(why);
	}
}

/* A kernel of the driver's library API is one for the runtime as well (CUDA 12.1 and later). */
static int load_runtime(void)
{
	static const char *const NAMES[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so" };
	void *library = NULL, *code;
	for (size_t at = 0; !library && at < sizeof NAMES / sizeof *NAMES; at++)
		library = dlopen(NAMES[at], RTLD_NOW);
	if (!library)
		return 0;
	*(void **)&runtime_launch = dlsym(library, "cudaLaunchKernel");
	if (!runtime_launch)
		return 0;
	CHECK(cuLibraryLoadData(&code, PTX, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&runtime_kernel, code, "empty_kernel"));
	return 1;
}

static void launch_kernel(void)
{
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void launch_by_runtime(void)
{
	static const struct size ONE = { 1, 1, 1 };
	CHECK(runtime_launch(runtime_kernel, ONE, ONE, NULL, 0, stream));
}

static void launch_graph(void)
{
	CHECK(cuGraphLaunch(exec, stream));
}

static void make_graph(int nodes)
{
	void *graph;
	/* Thread-local: other threads of the process do as they like. */
	CHECK(cuStreamBeginCapture_v2(stream, 1));
	for (int at = 0; at < nodes; at++)
		launch_kernel();
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Median ns per call; the first tenth of the time is not counted. */
static double median_cost(void (*launch)(void), int calls, double seconds)
{
	static double cost[CHUNKS_MAX];
	double begin = now_ns(), counted = begin + seconds * 1e8, end = begin + seconds * 1e9;
	int timed = 0;
	for (double now = begin; (now < end || timed == 0) && timed < CHUNKS_MAX; now = now_ns()) {
		CHECK(cuStreamSynchronize(stream));
		double start = now_ns();
		for (int call = 0; call < calls; call++)
			launch();
		double took = now_ns() - start;
		if (start >= counted)
			cost[timed++] = took / calls;
	}
	CHECK(cuStreamSynchronize(stream));
	qsort(cost, (size_t)timed, sizeof *cost, ascending);
	return (cost[timed / 2] + cost[(timed - 1) / 2]) / 2;
}

/* ---- what is told ---- */

/* Whether our library is mapped here, by any name that it is copied to. */
static int is_profiled(void)
{
	return dlsym(RTLD_DEFAULT, "parcagpu_status") != NULL;
}

/* Whether CUPTI came into this process: it does when somebody listens, and stays. */
static int is_cupti(struct dl_phdr_info *object, size_t size, void *data)
{
	(void)size, (void)data;
	return strstr(object->dlpi_name, "/libcupti.so") != NULL;
}

static const char *truth(int value)
{
	return value ? "true" : "false";
}

static void describe(void)
{
	char name[128] = "?";
	int version = 0;
	CHECK(cuDeviceGetName(name, sizeof name, 0));
	CHECK(cuDriverGetVersion(&version));
	for (char *c = name; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
	printf("{\"gpu\":\"%s\",\"cuda\":\"%d.%d\",\"profiled\":%s", name, version / 1000, version % 1000 / 10, truth(is_profiled()));
}

static long resident_kib(void)
{
	char line[256];
	long kib = -1;
	FILE *file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

/* Consumers come and go meanwhile. */
static void wait_at_gate(void)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	puts("{\"ready\":true}");
	fflush(stdout);
	make_graph(10);
	while (poll(&input, 1, 0) == 0) {
		launch_kernel();
		launch_graph();
		CHECK(cuStreamSynchronize(stream));
		usleep(GATE_PAUSE_US);
	}
}

static int number(const char *text, int most)
{
	char *end;
	long value = strtol(text, &end, 10);
	if (end == text || *end || value < 1 || value > most) {
		fprintf(stderr, "launch_cost: not a number from 1 to %d: %s\n", most, text);
		exit(2);
	}
	return (int)value;
}

struct row {
	const char *name;
	enum { RUNTIME, DRIVER, GRAPH, THREADS, PACED } kind;
	int count;
};

static struct row row_of(const char *name)
{
	struct row row = { .name = name };
	if (strcmp(name, "runtime") == 0)
		row.kind = RUNTIME;
	else if (strcmp(name, "driver") == 0)
		row.kind = DRIVER;
	else if (strncmp(name, "graph:", 6) == 0)
		row.kind = GRAPH, row.count = number(name + 6, 10000);
	else if (strncmp(name, "threads:", 8) == 0)
		row.kind = THREADS, row.count = number(name + 8, THREADS_MAX);
	else if (strncmp(name, "paced:", 6) == 0)
		row.kind = PACED, row.count = number(name + 6, THREADS_MAX);
	else {
		fprintf(stderr, "launch_cost: no such row: %s\n", name);
		exit(2);
	}
	return row;
}

static void measure(struct row row, double seconds)
{
	double cost = 0;
	switch (row.kind) {
	case RUNTIME:
		if (!load_runtime()) {
			printf("\"%s\":null", row.name);
			return;
		}
		cost = median_cost(launch_by_runtime, EAGER_CHUNK, seconds);
		break;
	case DRIVER:
		cost = median_cost(launch_kernel, EAGER_CHUNK, seconds);
		break;
	case GRAPH:
		make_graph(row.count);
		/* A large graph runs longer than it takes to launch it. */
		cost = median_cost(launch_graph, row.count > 10 ? GRAPH_CHUNK / 4 : GRAPH_CHUNK, seconds);
		break;
	case THREADS:
		cost = cost_of_threads(row.count, seconds);
		break;
	case PACED:
		cost = cost_of_paced_threads(row.count, seconds);
		break;
	}
	printf("\"%s\":%.1f", row.name, cost);
}

int main(int argc, char **argv)
{
	char names[256] = "driver,graph:10";
	struct row rows[ROWS_MAX];
	int count = 0, gate = 0, stay = 0, only_check = 0;
	double seconds = 0.5;
	for (int at = 1; at < argc; at++) {
		const char *option = argv[at];
		if (strcmp(option, "--check") == 0) {
			only_check = 1;
		} else if (strcmp(option, "--gate") == 0) {
			gate = 1;
		} else if (strcmp(option, "--stay") == 0) {
			stay = 1;
		} else if (strcmp(option, "--seconds") == 0 && at + 1 < argc) {
			seconds = atof(argv[++at]);
		} else if (strcmp(option, "--rows") == 0 && at + 1 < argc && strlen(argv[at + 1]) < sizeof names) {
			strcpy(names, argv[++at]);
		} else {
			fputs(USAGE, stderr);
			return 2;
		}
	}
	if (seconds < 0.001 || seconds > 60) {
		fputs("launch_cost: --seconds takes 0.001 to 60\n", stderr);
		return 2;
	}
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		if (count == ROWS_MAX) {
			fputs("launch_cost: too many rows\n", stderr);
			return 2;
		}
		rows[count++] = row_of(name);
	}

	load_driver();
	if (only_check) {
		describe();
		puts("}");
		return 0;
	}
	int device;
	void *module;
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, PTX));
	CHECK(cuModuleGetFunction(&kernel, module, "empty_kernel"));
	CHECK(cuStreamCreate(&stream, 1));
	if (gate)
		wait_at_gate();
	describe();
	printf(",\"rows\":{");
	for (int at = 0; at < count; at++) {
		if (at)
			putchar(',');
		measure(rows[at], seconds);
	}
	printf("},\"rss_kib\":%ld,\"cupti\":%s}\n", resident_kib(), truth(dl_iterate_phdr(is_cupti, NULL)));
	fflush(stdout);
	while (stay && getchar() != EOF)
		;
	CHECK(cuDevicePrimaryCtxRelease_v2(device));
	return 0;
}
