/*
 * A CUDA program with contexts and modules that come and go, word by word.
 *
 *   init | context | destroy          contexts: a new one becomes current; destroy the current one
 *   module SERIAL | cubin FILE        a module with the kernels sampled_SERIAL and other_SERIAL; machine code
 *   unload                            the last one
 *   keep N | use N                    remember the context and the last module; go back to them
 *   launch NAME N | flat NAME (until `stop`, which ends those of every thread) | sync | sleep MS | gate
 *   memory N                          N times: allocate, free
 *   thread W.. end | join
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *handle;

#define FUNCTIONS(f) \
	f(cuInit, (unsigned)) \
	f(cuCtxCreate_v2, (handle *, unsigned, int)) \
	f(cuCtxDestroy_v2, (handle)) \
	f(cuCtxSetCurrent, (handle)) \
	f(cuCtxSynchronize, (void)) \
	f(cuModuleLoadData, (handle *, const void *)) \
	f(cuModuleLoad, (handle *, const char *)) \
	f(cuModuleUnload, (handle)) \
	f(cuModuleGetFunction, (handle *, handle, const char *)) \
	f(cuMemAlloc_v2, (unsigned long long *, size_t)) \
	f(cuMemFree_v2, (unsigned long long)) \
	f(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))
#define DECLARE(name, args) static int(*name) args;
FUNCTIONS(DECLARE)

static handle context, module;
static struct { handle context, module; } kept[8];
static volatile int stopped;

struct words {
	char **word;
	int count;
};

static void check(const char *what, int code)
{
	if (code) {
		fprintf(stderr, "program: %s: %d\n", what, code);
		exit(70);
	}
}

static const char *next(struct words *w)
{
	check("a word is missing", !w->count);
	w->count--;
	return *w->word++;
}

static void init(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);

	check("no driver", !cuda);
#define FIND(name, args) \
	*(void **)&name = dlsym(cuda, #name); \
	check("no " #name, !name);
	FUNCTIONS(FIND)
	check("cuInit", cuInit(0));
}

static void load(const char *serial)
{
	char text[1024];

	snprintf(text, sizeof text,
		 ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sampled_%s()\n{\n\tret;\n}\n"
		 ".visible .entry other_%s()\n{\n\tret;\n}\n", serial, serial);
	check("cuModuleLoadData", cuModuleLoadData(&module, text));
}

static void launch(const char *name, long count)
{
	handle function;

	check("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
	while (count--)
		check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void flat(const char *name)
{
	handle function;

	check("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
	while (!stopped)
		check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void memory(long count)
{
	unsigned long long address;

	while (count--) {
		check("cuMemAlloc", cuMemAlloc_v2(&address, 1 << 20));
		check("cuMemFree", cuMemFree_v2(address));
	}
}

static void rest(long ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

static void use(long n)
{
	if (context != kept[n].context)
		check("cuCtxSetCurrent", cuCtxSetCurrent(kept[n].context));
	context = kept[n].context;
	module = kept[n].module;
}

static void run(struct words w);

static void *thread(void *words)
{
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	run(*(struct words *)words);
	return NULL;
}

static void run(struct words w)
{
	static struct words inner[16];
	pthread_t threads[16];
	int started = 0;

	while (w.count) {
		const char *word = next(&w);

		if (!strcmp(word, "init"))
			init();
		else if (!strcmp(word, "context"))
			check("cuCtxCreate", cuCtxCreate_v2(&context, 0, 0));
		else if (!strcmp(word, "destroy"))
			check("cuCtxDestroy", cuCtxDestroy_v2(context));
		else if (!strcmp(word, "module"))
			load(next(&w));
		else if (!strcmp(word, "cubin"))
			check("cuModuleLoad", cuModuleLoad(&module, next(&w)));
		else if (!strcmp(word, "keep")) {
			long n = atol(next(&w)) % 8;

			kept[n].context = context;
			kept[n].module = module;
		} else if (!strcmp(word, "use"))
			use(atol(next(&w)) % 8);
		else if (!strcmp(word, "unload"))
			check("cuModuleUnload", cuModuleUnload(module));
		else if (!strcmp(word, "launch")) {
			const char *name = next(&w);

			launch(name, atol(next(&w)));
		} else if (!strcmp(word, "flat"))
			flat(next(&w));
		else if (!strcmp(word, "stop"))
			stopped = 1;
		else if (!strcmp(word, "sync"))
			check("cuCtxSynchronize", cuCtxSynchronize());
		else if (!strcmp(word, "sleep"))
			rest(atol(next(&w)));
		else if (!strcmp(word, "memory"))
			memory(atol(next(&w)));
		else if (!strcmp(word, "gate")) {
			char line[64];

			puts("gate");
			fflush(stdout);
			check("gate", !fgets(line, sizeof line, stdin));
		} else if (!strcmp(word, "thread")) {
			inner[started] = (struct words){ w.word, 0 };
			while (strcmp(next(&w), "end"))
				inner[started].count++;
			check("thread", pthread_create(&threads[started], NULL, thread, &inner[started]));
			started++;
		} else if (!strcmp(word, "join"))
			while (started)
				pthread_join(threads[--started], NULL);
		else
			check(word, -1);
	}
}

int main(int argc, char **argv)
{
	run((struct words){ argv + 1, argc - 1 });
	return 0;
}
