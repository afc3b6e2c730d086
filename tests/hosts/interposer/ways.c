/*
 * A program that brings the driver in and uses it, word by word.
 *
 *   open FILE | openlocal FILE | openglobal FILE | openthread FILE | openspace FILE
 *                          dlopen it (in these ways) and use it from now on
 *   openclose FILE N       dlopen and dlclose it N times
 *   plugin FILE            dlopen it, and use what its plugin_library() gives
 *   linked                 (-DLINKED) use what the linker found
 *   byaddress FLAGS        look all functions up by cuGetProcAddress_v2, else cuGetProcAddress
 *   second | first         another set of functions and handles
 *   failopen FILE          print what dlerror says
 *   init | inits N         cuInit, and by N threads at once; results are printed
 *   initflags N            cuInit(N), result printed
 *   context                context, module, kernel
 *   launch N, ptsz N, ex N, exptsz N, coop N, coopptsz N, graph N, graphptsz N, sync
 *   threads N M            N threads with M launches each
 *   churn N FILE SECONDS   N threads launch while another one opens and closes FILE (-: nobody does), ten times at
 *                          least; prints no numbers, but appends the number of launches and the nanoseconds of
 *                          processor time that they took to the file $LAUNCHES_FILE
 *   bytes NAME N           the first N bytes of a function
 *   call NAME              call it with the arguments of a launch
 *   late FILE local|global dlopen another library; inject calls its InitializeInjection
 *   bad                    calls with arguments that the driver refuses; results printed
 *   environment            what changed in the environment since the start
 *   sleep MS, gate, say TEXT
 */
#include "cuda.h"
#include <sys/mman.h>

#ifdef LINKED
#define EXTERN(name, args) extern int name args;
CUDA_FUNCTIONS(EXTERN)
#endif

static struct cuda sets[2], *cuda = &sets[0];
static char **words;
static handle late;

static const char *next(void)
{
	if (!*words)
		die("a word is missing", 0);
	return *words++;
}

static long number(void)
{
	return atol(next());
}

static void *must(handle library)
{
	if (!library)
		die(dlerror(), 0);
	return library;
}

static void use(handle library)
{
	cuda->library = must(library);
	cuda_find(cuda);
}

static void *open_it(void *file)
{
	return dlopen(file, RTLD_NOW);
}

static handle in_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	void *result;

	check("pthread_create", pthread_create(&thread, NULL, body, argument));
	pthread_join(thread, &result);
	return result;
}

static pthread_barrier_t barrier;

static void *init_one(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	return (void *)(intptr_t)cuda->cuInit(0);
}

static void inits(long count)
{
	pthread_t threads[64];
	long good = 0;

	pthread_barrier_init(&barrier, NULL, count);
	for (long i = 0; i < count; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, init_one, NULL));
	for (long i = 0; i < count; i++) {
		void *result;

		pthread_join(threads[i], &result);
		good += result == NULL;
	}
	printf("%ld of %ld cuInit\n", good, count);
}

static const char *const exported[] = {
#define NAME(name, args) #name,
	CUDA_FUNCTIONS(NAME)
};

/* As newer runtimes do; versions are chosen by number, so suffixes are left out. */
static void by_address(unsigned long long flags)
{
	int (*v2)(const char *, void **, int, unsigned long long, unsigned *) = NULL;
	int (*v1)(const char *, void **, int, unsigned long long) = NULL;
	void **slot = (void **)cuda;

	*(void **)&v2 = dlsym(cuda->library, "cuGetProcAddress_v2");
	*(void **)&v1 = dlsym(cuda->library, "cuGetProcAddress");
	for (unsigned i = 0; i < sizeof exported / sizeof *exported; i++) {
		char name[64];
		void *found = NULL;
		unsigned status = 0;
		int result;

		snprintf(name, sizeof name, "%s", exported[i]);
		if (strstr(name, "_ptsz") || strstr(name, "WithFlags"))
			continue;
		if (strstr(name, "_v2"))
			*strstr(name, "_v2") = 0;
		if (v2)
			result = v2(name, &found, 12000, flags, &status);
		else
			result = v1(name, &found, 11030, flags);
		printf("%s: %d %s\n", name, result, found ? "found" : "null");
		if (found)
			slot[i] = found;
	}
}

static void graph(void)
{
	handle graph, stream;

	if (cuda->graph)
		return;
	check("cuStreamCreate", cuda->cuStreamCreate(&stream, 1));
	check("cuStreamBeginCapture", cuda->cuStreamBeginCapture_v2(stream, 1));
	check("captured", cuda->cuLaunchKernel(cuda->function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	check("cuStreamEndCapture", cuda->cuStreamEndCapture(stream, &graph));
	check("cuGraphInstantiate", cuda->cuGraphInstantiateWithFlags(&cuda->graph, graph, 0));
}

static int launch(const char *way)
{
	struct config c = { { 1, 1, 1 }, { 32, 1, 1 }, 0, NULL, NULL, 0 };
	handle f = cuda->function;

	if (!strcmp(way, "launch"))
		return cuda->cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	if (!strcmp(way, "ptsz"))
		return cuda->cuLaunchKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	if (!strcmp(way, "ex"))
		return cuda->cuLaunchKernelEx(&c, f, NULL, NULL);
	if (!strcmp(way, "exptsz"))
		return cuda->cuLaunchKernelEx_ptsz(&c, f, NULL, NULL);
	if (!strcmp(way, "coop"))
		return cuda->cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL);
	if (!strcmp(way, "coopptsz"))
		return cuda->cuLaunchCooperativeKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL);
	graph();
	if (!strcmp(way, "graph"))
		return cuda->cuGraphLaunch(cuda->graph, NULL);
	if (!strcmp(way, "graphptsz"))
		return cuda->cuGraphLaunch_ptsz(cuda->graph, NULL);
	return -1;
}

static atomic_int stop;
static atomic_long launched, processor_ns;
static long each;

static long thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000l + t.tv_nsec;
}

static void *launcher(void *unused)
{
	(void)unused;
	check("cuCtxSetCurrent", cuda->cuCtxSetCurrent(cuda->context));
	long done = 0, begin = thread_ns();

	for (; each ? done < each : !atomic_load(&stop); done++)
		cuda_launch(cuda, 1);
	atomic_fetch_add(&processor_ns, thread_ns() - begin);
	atomic_fetch_add(&launched, done);
	return NULL;
}

static void note_launches(void)
{
	const char *name = getenv("LAUNCHES_FILE");
	FILE *file = name ? fopen(name, "a") : NULL;

	if (file) {
		fprintf(file, "%ld %ld\n", atomic_exchange(&launched, 0), atomic_exchange(&processor_ns, 0));
		fclose(file);
	}
}

static void churn(long count, const char *file, double seconds)
{
	uint64_t end = now_ns() + seconds * 1e9;
	pthread_t threads[64];
	long opened = 0;

	atomic_store(&stop, 0);
	for (long i = 0; i < count; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, launcher, NULL));
	if (file && !strcmp(file, "-")) {
		file = NULL;
		while (now_ns() < end)
			pause_ms(10);
	}
	for (; file && (now_ns() < end || opened < 10); opened++) {
		handle library = must(dlopen(file, RTLD_NOW));
		int (*number)(void) = (int (*)(void))dlsym(library, "churn_number");

		if (!number || number() != 8)
			die("the small library is not itself", opened);
		dlclose(library);
	}
	atomic_store(&stop, 1);
	for (long i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	note_launches();
}

static void *address(const char *name)
{
	return must(dlsym(cuda->library, name));
}

static void bytes(const char *name, long count)
{
	const unsigned char *at = address(name);

	printf("%s:", name);
	for (long i = 0; i < count; i++)
		printf(" %02x", at[i]);
	printf("\n");
}

/* Calls the driver refuses, and what it leaves in out-parameters. */
static void bad(void)
{
	handle poison = (handle)0x5a5a5a5a5a5a5a5a, out = poison;
	char *unreadable = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct config c = { { 1, 1, 1 }, { 32, 1, 1 }, 0, NULL, NULL, 0 };

#define SHOW(call) (errno = 77, out = poison, printf("%s = %d, %s, errno %d\n", #call, call, out == poison ? "kept" : out ? "set" : "null", errno))
	SHOW(cuda->cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	SHOW(cuda->cuLaunchKernel_ptsz(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	SHOW(cuda->cuLaunchKernel(cuda->function, 1, 1, 1, 4096, 1, 1, 0, NULL, NULL, NULL));
	SHOW(cuda->cuLaunchKernelEx(NULL, cuda->function, NULL, NULL));
	SHOW(cuda->cuLaunchKernelEx_ptsz(NULL, cuda->function, NULL, NULL));
	SHOW(cuda->cuLaunchKernelEx(&c, NULL, NULL, NULL));
	SHOW(cuda->cuLaunchCooperativeKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL));
	SHOW(cuda->cuGraphLaunch(NULL, NULL));
	SHOW(cuda->cuModuleLoadData(&out, NULL));
	SHOW(cuda->cuModuleLoadData(NULL, KERNEL_TEXT));
	SHOW(cuda->cuModuleLoadDataEx(&out, NULL, 0, NULL, NULL));
	SHOW(cuda->cuModuleLoadDataEx(&out, KERNEL_TEXT, 5, NULL, NULL));
	SHOW(cuda->cuModuleLoadFatBinary(&out, NULL));
	SHOW(cuda->cuModuleLoad(&out, "/there/is/no/such/file"));
	SHOW(cuda->cuModuleLoad(&out, NULL));
	SHOW(cuda->cuLibraryLoadData(&out, NULL, NULL, NULL, 0, NULL, NULL, 0));
	SHOW(cuda->cuLibraryLoadFromFile(&out, "/there/is/no/such/file", NULL, NULL, 0, NULL, NULL, 0));
	SHOW(cuda->cuInit(0xffff));
	/* Scripted to fail before the driver looks at it: nobody else may either. */
	SHOW(cuda->cuModuleLoadData(&out, unreadable));
	SHOW(cuda->cuModuleLoadDataEx(&out, unreadable, 0, NULL, NULL));
	SHOW(cuda->cuLibraryLoadData(&out, unreadable, NULL, NULL, 0, NULL, NULL, 0));
}

extern char **environ;
static char **at_start;

static int contains(char **list, const char *variable)
{
	for (; *list; list++)
		if (!strcmp(*list, variable))
			return 1;
	return 0;
}

static void keep_environment(void)
{
	int count = 0;

	while (environ[count])
		count++;
	at_start = calloc(count + 1, sizeof *at_start);
	for (int i = 0; i < count; i++)
		at_start[i] = strdup(environ[i]);
}

/* What a child would find changed since the start. */
static void environment(void)
{
	for (char **v = environ; *v; v++)
		if (!contains(at_start, *v))
			printf("set: %s\n", *v);
	for (char **v = at_start; *v; v++)
		if (!contains(environ, *v))
			printf("gone: %s\n", *v);
}

static int is(const char *word, const char *what)
{
	return !strcmp(word, what);
}

static void run(const char *w)
{
	static const char *const ways[] = { "launch", "ptsz", "ex", "exptsz", "coop", "coopptsz", "graph", "graphptsz" };

	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		if (is(w, ways[i])) {
			for (long n = number(); n > 0; n--)
				check(w, launch(w));
			return;
		}
	}
	if (is(w, "open"))
		use(dlopen(next(), RTLD_NOW));
	else if (is(w, "openlocal"))
		use(dlopen(next(), RTLD_LAZY | RTLD_LOCAL));
	else if (is(w, "openglobal"))
		use(dlopen(next(), RTLD_LAZY | RTLD_GLOBAL));
	else if (is(w, "openthread"))
		use(in_thread(open_it, (void *)next()));
	else if (is(w, "openclose")) {
		const char *file = next();

		for (long n = number(); n > 0; n--)
			check("dlclose", dlclose(must(dlopen(file, RTLD_NOW))));
	} else if (is(w, "openspace"))
		use(dlmopen(LM_ID_NEWLM, next(), RTLD_NOW));
	else if (is(w, "plugin")) {
		handle plugin = must(dlopen(next(), RTLD_NOW));
		handle (*library)(void) = (handle(*)(void))must(dlsym(plugin, "plugin_library"));

		use(library());
	} else if (is(w, "linked")) {
#ifdef LINKED
#define DIRECT(name, args) cuda->name = name;
		CUDA_FUNCTIONS(DIRECT)
#else
		die("not linked", 0);
#endif
	} else if (is(w, "byaddress"))
		by_address(number());
	else if (is(w, "second"))
		cuda = &sets[1];
	else if (is(w, "first"))
		cuda = &sets[0];
	else if (is(w, "failopen")) {
		handle library = dlopen(next(), RTLD_NOW);

		printf("%s\n", library ? "it is there" : dlerror());
	} else if (is(w, "init"))
		printf("cuInit %d\n", cuda->cuInit(0));
	else if (is(w, "inits"))
		inits(number());
	else if (is(w, "initflags"))
		printf("cuInit %d\n", cuda->cuInit(number()));
	else if (is(w, "context"))
		cuda_context(cuda);
	else if (is(w, "sync"))
		check("cuCtxSynchronize", cuda->cuCtxSynchronize());
	else if (is(w, "threads")) {
		long count = number();

		each = number();
		churn(count, NULL, 0);
		each = 0;
	} else if (is(w, "churn")) {
		long count = number();
		const char *file = next();

		churn(count, file, atof(next()));
	} else if (is(w, "bytes")) {
		const char *name = next();

		bytes(name, number());
	} else if (is(w, "call")) {
		int (*f)(SHAPE, void **) = (int (*)(SHAPE, void **))address(next());

		printf("called %d\n", f(cuda->function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	} else if (is(w, "late")) {
		const char *file = next();

		late = must(dlopen(file, RTLD_NOW | (is(next(), "global") ? RTLD_GLOBAL : RTLD_LOCAL)));
	} else if (is(w, "inject")) {
		int (*inject)(void) = (int (*)(void))must(dlsym(late, "InitializeInjection"));

		printf("injected %d\n", inject());
	} else if (is(w, "bad"))
		bad();
	else if (is(w, "environment"))
		environment();
	else if (is(w, "sleep"))
		pause_ms(number());
	else if (is(w, "gate")) {
		char line[64];

		printf("gate\n");
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			_exit(71);
	} else if (is(w, "say"))
		printf("%s\n", next());
	else
		die(w, -1);
}

int main(int argc, char **argv)
{
	(void)argc;
	words = argv + 1;
	keep_environment();
	while (*words)
		run(next());
	return 0;
}
