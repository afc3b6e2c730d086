/*
 * A CUDA program that does what its arguments say, word by word. The tests' stand-in for any program.
 *
 * Before `init`: streams N, modules N, kernel NAME (of the kernels, a number is appended per module).
 * Work (each thread has its own place in the list of words):
 *   init                    load libcuda, initialise it, make a context, streams and modules
 *   launch N | ex N | coop N | ptsz N      launches, going round streams and modules
 *   spaced R S | flat S     eager launches at R a second, or as many as go, for S seconds or until `stop`, which ends
 *                           those of every thread
 *   graph NODES             make a graph; replay N, replayspaced R S, replayflat S launch it
 *   capture N               N launches into a capture that is thrown away
 *   fail N                  N launches that the driver refuses
 *   lookup TWIN             launch by the address that cuGetProcAddress_v2 gives from now on; TWIN 1: the
 *                           one for per-thread default streams
 *   onsignal jump|exit      what SIGUSR1 does: jump back to `jumpout`, or end the thread
 *   jumpout                 a launch that a signal may leave; cancelstate prints whether this thread can be cancelled
 *   sync, count             wait for the GPU; print the launches that succeeded so far
 *   sleep MS, say TEXT, gate        gate prints "gate" and waits for a line of input
 *   thread W.. end, join, stop, repeat N W.. end, fork W.. end
 * The process: exit N, _exit N, quick_exit N, exitthread N, abort, raise SIG, exec PROGRAM ARGS..,
 *   close3, ownfile PATH, block, selfsig N, mask, inject LIB N, nofds, now
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

typedef void *handle;
struct config {
	unsigned grid[3], block[3], shared;
	handle stream, attributes;
	unsigned count;
};

#define FUNCTIONS(f) \
	f(cuInit, (unsigned)) \
	f(cuDeviceGet, (int *, int)) \
	f(cuDevicePrimaryCtxRetain, (handle *, int)) \
	f(cuCtxSetCurrent, (handle)) \
	f(cuCtxSynchronize, (void)) \
	f(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *)) \
	f(cuModuleLoadData, (handle *, const void *)) \
	f(cuModuleGetFunction, (handle *, handle, const char *)) \
	f(cuStreamCreate, (handle *, unsigned)) \
	f(cuStreamBeginCapture_v2, (handle, int)) \
	f(cuStreamEndCapture, (handle, handle *)) \
	f(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	f(cuGraphLaunch, (handle, handle)) \
	f(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	f(cuLaunchKernel_ptsz, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	f(cuLaunchCooperativeKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **)) \
	f(cuLaunchKernelEx, (const struct config *, handle, void **, void **))
#define DECLARE(name, args) static int(*name) args;
FUNCTIONS(DECLARE)

#define MOST 64
static int stream_count = 1, module_count = 1;
static const char *kernel = "host_kernel";
static handle context, streams[MOST], functions[MOST];
static atomic_ulong launched, replayed;
static atomic_bool stopped;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;

struct place {
	char **word;
	int count, at;
	unsigned turn;
	handle graph;
	pthread_t threads[MOST];
	int thread_count;
};

static void run(struct place *p);

void say(const char *format, ...)
{
	char line[4096];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	pthread_mutex_lock(&print_lock);
	fputs(line, stdout);
	fflush(stdout);
	pthread_mutex_unlock(&print_lock);
}

void die(const char *what, int code)
{
	fprintf(stderr, "host: %s: %d\n", what, code);
	_exit(70);
}

static void check(const char *what, int code)
{
	if (code)
		die(what, code);
}

static const char *next(struct place *p)
{
	if (p->at >= p->count)
		die("a word is missing", p->at);
	return p->word[p->at++];
}

static long number(struct place *p)
{
	return atol(next(p));
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void init(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	int device;

	if (!cuda)
		die(dlerror(), 0);
#define FIND(name, args) \
	*(void **)&name = dlsym(cuda, #name); \
	if (!name) \
		die("no " #name, 0);
	FUNCTIONS(FIND)
	check("cuInit", cuInit(0));
	check("cuDeviceGet", cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	for (int i = 1; i < stream_count; i++)
		check("cuStreamCreate", cuStreamCreate(&streams[i], 1));
	for (int i = 0; i < module_count; i++) {
		char name[256], text[1024];
		handle module;

		snprintf(name, sizeof name, module_count == 1 ? "%s" : "%s%d", kernel, i);
		snprintf(text, sizeof text,
			 ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n\tret;\n}\n", name);
		check("cuModuleLoadData", cuModuleLoadData(&module, text));
		check("cuModuleGetFunction", cuModuleGetFunction(&functions[i], module, name));
	}
}

enum way { PLAIN, EX, COOPERATIVE, PER_THREAD, TOO_BIG };

static int launch_into(struct place *p, enum way way, handle stream)
{
	handle f = functions[p->turn % module_count];

	p->turn++;
	switch (way) {
	case PLAIN:
		return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
	case PER_THREAD:
		return cuLaunchKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	case COOPERATIVE:
		return cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
	case EX: {
		struct config c = { { 1, 1, 1 }, { 32, 1, 1 }, 0, stream, NULL, 0 };

		return cuLaunchKernelEx(&c, f, NULL, NULL);
	}
	default:
		return cuLaunchKernel(f, 1, 1, 1, 4096, 1, 1, 0, stream, NULL, NULL);
	}
}

static void launch(struct place *p, enum way way)
{
	check("launch", launch_into(p, way, streams[p->turn % stream_count]));
	atomic_fetch_add(&launched, 1);
}

static void replay(struct place *p)
{
	check("cuGraphLaunch", cuGraphLaunch(p->graph, streams[0]));
	atomic_fetch_add(&replayed, 1);
}

static void launch_many(struct place *p, enum way way)
{
	for (long n = number(p); n > 0; n--)
		launch(p, way);
}

static void spaced(struct place *p, void (*act)(struct place *))
{
	double rate = atof(next(p)), seconds = atof(next(p));
	uint64_t start = now_ns();
	long count = rate * seconds;

	for (long i = 0; i < count && !stopped; i++) {
		sleep_until(start + i * 1e9 / rate);
		act(p);
	}
	if (!stopped)
		sleep_until(start + seconds * 1e9);
}

static void flat(struct place *p, void (*act)(struct place *))
{
	uint64_t end = now_ns() + atof(next(p)) * 1e9;

	while (now_ns() < end && !stopped)
		act(p);
}

static void launch_plain(struct place *p)
{
	launch(p, PLAIN);
}

static handle capture(struct place *p, long nodes)
{
	handle graph, stream;

	check("cuStreamCreate", cuStreamCreate(&stream, 1));
	check("cuStreamBeginCapture", cuStreamBeginCapture_v2(stream, 1));
	for (long i = 0; i < nodes; i++)
		check("captured launch", launch_into(p, PLAIN, stream));
	check("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
	return graph;
}

static __thread sigjmp_buf back;

static void jump_back(int signal)
{
	siglongjmp(back, signal);
}

static void end_thread(int signal)
{
	(void)signal;
	pthread_exit(NULL);
}

static void jump_out(struct place *p)
{
	if (sigsetjmp(back, 1))
		say("jumped out\n");
	else
		launch(p, PLAIN);
}

static void print_cancel_state(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
	say("cancellation %s\n", state == PTHREAD_CANCEL_ENABLE ? "on" : "off");
}

/* The words up to the matching `end`. */
static struct place block(struct place *p)
{
	struct place inner = { .word = p->word + p->at, .graph = p->graph, .turn = p->turn };
	int depth = 1;

	for (;;) {
		const char *word = next(p);

		if (!strcmp(word, "thread") || !strcmp(word, "repeat") || !strcmp(word, "fork"))
			depth++;
		else if (!strcmp(word, "end") && --depth == 0)
			return inner;
		inner.count++;
	}
}

static void *thread(void *arg)
{
	struct place *p = arg;

	if (context)
		cuCtxSetCurrent(context);
	run(p);
	free(p);
	return NULL;
}

static void start(struct place *p)
{
	struct place *inner = malloc(sizeof *inner);

	if (p->thread_count == MOST)
		die("too many threads", MOST);
	*inner = block(p);
	check("pthread_create", pthread_create(&p->threads[p->thread_count++], NULL, thread, inner));
}

static void join(struct place *p)
{
	while (p->thread_count)
		pthread_join(p->threads[--p->thread_count], NULL);
}

static void fork_child(struct place *p)
{
	struct place inner = block(p);
	int status;
	pid_t child = fork();

	if (child < 0)
		die("fork", errno);
	if (!child) {
		run(&inner);
		exit(0);
	}
	waitpid(child, &status, 0);
	if (WIFEXITED(status))
		say("child exited %d\n", WEXITSTATUS(status));
	else
		say("child killed %d\n", WTERMSIG(status));
}

static void gate(void)
{
	char line[64];

	say("gate\n");
	if (!fgets(line, sizeof line, stdin))
		_exit(71);
}

static void word(struct place *p, const char *w)
{
#define IS(text) (!strcmp(w, text))
	if (IS("streams"))
		stream_count = number(p);
	else if (IS("modules"))
		module_count = number(p);
	else if (IS("kernel"))
		kernel = next(p);
	else if (IS("init"))
		init();
	else if (IS("launch"))
		launch_many(p, PLAIN);
	else if (IS("ex"))
		launch_many(p, EX);
	else if (IS("coop"))
		launch_many(p, COOPERATIVE);
	else if (IS("ptsz"))
		launch_many(p, PER_THREAD);
	else if (IS("spaced"))
		spaced(p, launch_plain);
	else if (IS("flat"))
		flat(p, launch_plain);
	else if (IS("graph"))
		check("cuGraphInstantiate", cuGraphInstantiateWithFlags(&p->graph, capture(p, number(p)), 0));
	else if (IS("replay"))
		for (long n = number(p); n > 0; n--)
			replay(p);
	else if (IS("replayspaced"))
		spaced(p, replay);
	else if (IS("replayflat"))
		flat(p, replay);
	else if (IS("capture"))
		capture(p, number(p));
	else if (IS("fail"))
		for (long n = number(p); n > 0; n--) {
			if (!launch_into(p, TOO_BIG, streams[0]))
				die("a launch that is too big went through", 0);
		}
	else if (IS("lookup")) {
		int found = 0;
		unsigned long long flags = number(p) ? 2 : 1;

		check("cuGetProcAddress", cuGetProcAddress_v2("cuLaunchKernel", (void **)&cuLaunchKernel, 13000, flags, &found));
	} else if (IS("onsignal"))
		signal(SIGUSR1, strcmp(next(p), "exit") ? jump_back : end_thread);
	else if (IS("jumpout"))
		jump_out(p);
	else if (IS("cancelstate"))
		print_cancel_state();
	else if (IS("sync"))
		check("cuCtxSynchronize", cuCtxSynchronize());
	else if (IS("count"))
		say("launched %lu replayed %lu\n", (unsigned long)launched, (unsigned long)replayed);
	else if (IS("sleep"))
		sleep_until(now_ns() + number(p) * 1000000ull);
	else if (IS("now"))
		say("now %llu\n", (unsigned long long)now_ns());
	else if (IS("say"))
		say("%s\n", next(p));
	else if (IS("gate"))
		gate();
	else if (IS("thread"))
		start(p);
	else if (IS("join"))
		join(p);
	else if (IS("stop"))
		stopped = true;
	else if (IS("repeat")) {
		long n = number(p);
		struct place inner = block(p);

		for (; n > 0; n--) {
			inner.at = 0;
			run(&inner);
		}
	} else if (IS("fork"))
		fork_child(p);
	else if (IS("exit"))
		exit(number(p));
	else if (IS("_exit"))
		_exit(number(p));
	else if (IS("quick_exit"))
		quick_exit(number(p));
	else if (IS("exitthread"))
		exit_from_thread(number(p));
	else if (IS("abort"))
		abort();
	else if (IS("raise"))
		raise(number(p));
	else if (IS("exec")) {
		char *args[MOST] = { 0 };

		for (int i = 0; p->at < p->count && i < MOST - 1; i++)
			args[i] = p->word[p->at++];
		execvp(args[0], args);
		die(args[0], errno);
	} else if (IS("close3"))
		close_descriptors();
	else if (IS("ownfile"))
		own_file(next(p));
	else if (IS("block"))
		block_signals();
	else if (IS("selfsig"))
		signal_self(number(p));
	else if (IS("mask"))
		print_masks();
	else if (IS("nofds"))
		print_descriptors();
	else if (IS("inject")) {
		const char *library = next(p);

		inject(library, number(p));
	} else
		die(w, -1);
}

static void run(struct place *p)
{
	while (p->at < p->count)
		word(p, next(p));
}

int main(int argc, char **argv)
{
	struct place p = { .word = argv + 1, .count = argc - 1 };

	run(&p);
	return 0;
}
