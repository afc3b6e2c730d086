/*
 * A program that uses CUDA and, by itself, CUPTI, word by word. What it prints is the same whether or
 * not somebody else watches it.
 *
 * CUDA:   init (driver, cuInit, context, module), launch N, module, sync
 * CUPTI:  load FILE | loadspace FILE | loadlocal FILE    libcupti, by dlopen or dlmopen
 *         subscribe, subscribe2, unsubscribe     the result is printed
 *         register, on, off, flush N             buffer callbacks; kernel records
 *         launches 0|1, resource 0|1, all 0|1    its callbacks: launches, resources, everything
 *         inside 1|2|3                           in its next callback: subscribe once more (39), unsubscribe
 *                                                and subscribe, or switch kernel records on
 *         finalize
 *         report             records since the last report, buffers that are not its own, callbacks
 *         attempt            subscribe and let go; refused prints how often that got 39
 * Other:  gate, sleep MS, say TEXT, fork WORDS.. end, repeat N WORDS.. end, thread WORDS.. end, join,
 *         until SECONDS WORDS.. end, stop (ends every "until"), exit N
 */
#include "../interposer/cuda.h"
#include <sys/wait.h>

#define CUPTI_FUNCTIONS(f) \
	f(cuptiSubscribe, (handle *, void (*)(void *, unsigned, unsigned, const void *), void *)) \
	f(cuptiSubscribe_v2, (handle *, void (*)(void *, unsigned, unsigned, const void *), void *, void *)) \
	f(cuptiUnsubscribe, (handle)) \
	f(cuptiEnableCallback, (unsigned, handle, unsigned, unsigned)) \
	f(cuptiEnableDomain, (unsigned, handle, unsigned)) \
	f(cuptiEnableAllDomains, (unsigned, handle)) \
	f(cuptiActivityRegisterCallbacks, (void (*)(uint8_t **, size_t *, size_t *), \
		void (*)(handle, unsigned, uint8_t *, size_t, size_t))) \
	f(cuptiActivityEnable, (unsigned)) \
	f(cuptiActivityDisable, (unsigned)) \
	f(cuptiActivityFlushAll, (unsigned)) \
	f(cuptiActivityGetNextRecord, (uint8_t *, size_t, uint8_t **)) \
	f(cuptiFinalize, (void))

#define EACH(name, args) static int(*name) args;
CUPTI_FUNCTIONS(EACH)

enum { DRIVER = 1, RESOURCE = 3, LAUNCH = 307, CONCURRENT_KERNEL = 10, BUFFER = 1 << 16, MOST = 256 };

static struct cuda cuda;
static handle subscriber, cupti_library;
static atomic_int stopped;
static atomic_ulong records, foreign, driver_callbacks, other_callbacks, refused;
static uint8_t *own[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct place {
	char **word;
	int count, at;
	pthread_t threads[16];
	int thread_count;
};

static void run(struct place *p);
static void callback(void *data, unsigned domain, unsigned cbid, const void *info);

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

static void say(const char *what, long value)
{
	pthread_mutex_lock(&lock);
	printf("%s %ld\n", what, value);
	fflush(stdout);
	pthread_mutex_unlock(&lock);
}

static void load(handle library)
{
	if (!library)
		die(dlerror(), 0);
	cupti_library = library;
#define LOOK_UP(name, args) \
	*(void **)&name = dlsym(library, #name); \
	if (!name) \
		die("no " #name, 0);
	CUPTI_FUNCTIONS(LOOK_UP)
}

static void init(void)
{
	cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda_find(&cuda);
	check("cuInit", cuda.cuInit(0));
	cuda_context(&cuda);
}

static void request(uint8_t **buffer, size_t *size, size_t *most)
{
	*buffer = aligned_alloc(8, BUFFER);
	*size = BUFFER;
	*most = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST; i++) {
		if (!own[i]) {
			own[i] = *buffer;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

static void complete(handle context, unsigned stream, uint8_t *buffer, size_t size, size_t valid)
{
	uint8_t *record = NULL;
	int mine = 0;

	(void)context, (void)stream, (void)size;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST && !mine; i++) {
		if (own[i] == buffer) {
			own[i] = NULL;
			mine = 1;
		}
	}
	pthread_mutex_unlock(&lock);
	if (!mine) {
		atomic_fetch_add(&foreign, 1);
		return;
	}
	while (!cuptiActivityGetNextRecord(buffer, valid, &record))
		atomic_fetch_add(&records, 1);
	free(buffer);
}

static atomic_int inside;

static void callback(void *data, unsigned domain, unsigned cbid, const void *info)
{
	if (data != &cuda || !info)
		die("a callback that is not this program's", cbid);
	atomic_fetch_add(domain == DRIVER ? &driver_callbacks : &other_callbacks, 1);
	switch (atomic_exchange(&inside, 0)) {
	case 1: {
		handle second = NULL;

		say("inside", cuptiSubscribe(&second, callback, &cuda));
		break;
	}
	case 2:
		say("inside, unsubscribe", cuptiUnsubscribe(subscriber));
		say("inside, subscribe", cuptiSubscribe(&subscriber, callback, &cuda));
		break;
	case 3:
		say("inside, on", cuptiActivityEnable(CONCURRENT_KERNEL));
		break;
	}
}

static void report(void)
{
	pthread_mutex_lock(&lock);
	printf("records %lu foreign %lu driver %lu other %lu\n", atomic_exchange(&records, 0), (unsigned long)foreign,
	       atomic_exchange(&driver_callbacks, 0), atomic_exchange(&other_callbacks, 0));
	fflush(stdout);
	pthread_mutex_unlock(&lock);
}

static struct place block(struct place *p)
{
	static const char *const begins[] = { "fork", "repeat", "thread", "until" };
	struct place inner = { .word = p->word + p->at };
	int depth = 1;

	for (;;) {
		const char *word = next(p);

		for (int i = 0; i < 4; i++)
			depth += !strcmp(word, begins[i]);
		if (!strcmp(word, "end") && --depth == 0)
			return inner;
		inner.count++;
	}
}

static void *thread(void *argument)
{
	if (cuda.context)
		cuda.cuCtxSetCurrent(cuda.context);
	run(argument);
	return NULL;
}

static void fork_child(struct place *p)
{
	struct place inner = block(p);
	int status;
	pid_t child = fork();

	if (!child) {
		run(&inner);
		exit(0);
	}
	waitpid(child, &status, 0);
	say(WIFEXITED(status) ? "child exited" : "child killed", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int is(const char *word, const char *what)
{
	return !strcmp(word, what);
}

static void cupti_word(struct place *p, const char *w)
{
	if (is(w, "load"))
		load(dlopen(next(p), RTLD_NOW | RTLD_GLOBAL));
	else if (is(w, "loadlocal"))
		load(dlopen(next(p), RTLD_LAZY | RTLD_LOCAL));
	else if (is(w, "loadspace"))
		load(dlmopen(LM_ID_NEWLM, next(p), RTLD_NOW));
	else if (is(w, "subscribe"))
		say("subscribe", cuptiSubscribe(&subscriber, callback, &cuda));
	else if (is(w, "subscribe2"))
		say("subscribe_v2", cuptiSubscribe_v2(&subscriber, callback, &cuda, NULL));
	else if (is(w, "attempt")) {
		int result = cuptiSubscribe(&subscriber, callback, &cuda);

		if (result && result != 39)
			die("cuptiSubscribe", result);
		if (result)
			atomic_fetch_add(&refused, 1);
		else
			check("cuptiUnsubscribe", cuptiUnsubscribe(subscriber));
	} else if (is(w, "refused"))
		say("refused", refused);
	else if (is(w, "unsubscribe"))
		say("unsubscribe", cuptiUnsubscribe(subscriber));
	else if (is(w, "register"))
		say("register", cuptiActivityRegisterCallbacks(request, complete));
	else if (is(w, "on"))
		say("on", cuptiActivityEnable(CONCURRENT_KERNEL));
	else if (is(w, "off"))
		say("off", cuptiActivityDisable(CONCURRENT_KERNEL));
	else if (is(w, "flush"))
		say("flush", cuptiActivityFlushAll(number(p)));
	else if (is(w, "launches"))
		say("launches", cuptiEnableCallback(number(p), subscriber, DRIVER, LAUNCH));
	else if (is(w, "resource"))
		say("resource", cuptiEnableDomain(number(p), subscriber, RESOURCE));
	else if (is(w, "all"))
		say("all", cuptiEnableAllDomains(number(p), subscriber));
	else if (is(w, "inside"))
		atomic_store(&inside, number(p));
	else if (is(w, "finalize"))
		say("finalize", cuptiFinalize());
	else if (is(w, "report"))
		report();
	else
		die(w, -1);
}

static void word(struct place *p, const char *w)
{
	if (is(w, "init"))
		init();
	else if (is(w, "launch"))
		cuda_launch(&cuda, number(p));
	else if (is(w, "module")) {
		handle module;

		check("cuModuleLoadData", cuda.cuModuleLoadData(&module, KERNEL_TEXT));
	} else if (is(w, "sync"))
		check("cuCtxSynchronize", cuda.cuCtxSynchronize());
	else if (is(w, "sleep"))
		pause_ms(number(p));
	else if (is(w, "say"))
		say(next(p), 0);
	else if (is(w, "exit"))
		exit(number(p));
	else if (is(w, "gate")) {
		char line[64];

		printf("gate\n");
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			_exit(71);
	} else if (is(w, "repeat")) {
		long n = number(p);
		struct place inner = block(p);

		for (; n > 0; n--) {
			inner.at = 0;
			run(&inner);
		}
	} else if (is(w, "until")) {
		uint64_t end = now_ns() + atof(next(p)) * 1e9;
		struct place inner = block(p);

		while (now_ns() < end && !stopped) {
			inner.at = 0;
			run(&inner);
		}
	} else if (is(w, "stop"))
		stopped = 1;
	else if (is(w, "fork"))
		fork_child(p);
	else if (is(w, "thread")) {
		struct place *inner = malloc(sizeof *inner);

		*inner = block(p);
		check("pthread_create", pthread_create(&p->threads[p->thread_count++], NULL, thread, inner));
	} else if (is(w, "join")) {
		while (p->thread_count)
			pthread_join(p->threads[--p->thread_count], NULL);
	} else
		cupti_word(p, w);
}

static void run(struct place *p)
{
	while (p->at < p->count)
		word(p, next(p));
}

#ifdef IMPORT
/* A tool that subscribes when it is loaded, and never lets go. */
__attribute__((constructor)) static void import(void)
{
	load(dlopen("libcupti.so.13", RTLD_NOW));
	check("cuptiSubscribe", cuptiSubscribe(&subscriber, callback, &cuda));
}
#endif

int main(int argc, char **argv)
{
	struct place p = { .word = argv + 1, .count = argc - 1 };

	run(&p);
	return 0;
}
