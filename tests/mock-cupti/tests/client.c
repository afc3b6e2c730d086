/* Scenarios against the simulated CUPTI; the name of one is the argument. Each checks itself. */
#include "client.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DRIVER = 1, RUNTIME = 2, RESOURCE = 3 };
enum { LAUNCH = 307, GRAPH_LAUNCH = 514, RUNTIME_LAUNCH = 211, MODULE_LOADED = 6, MODULE_PROFILED = 8 };
enum { CONCURRENT_KERNEL = 10 };
#define MAX_LAUNCHES 100000

static void *subscriber;

/* What the callbacks saw. */
static struct {
	uint32_t domain, id;
	char symbol[64];
} exits[MAX_LAUNCHES];
static int enters, exit_count, loaded, profiled, enable_inside;

/* What the buffers brought. */
static struct {
	uint32_t id, graph;
	uint64_t start, end, node;
	int has_name;
} records[MAX_LAUNCHES];
/* For what another thread does; a machine may be busy. */
#define PATIENCE_MS 20000

static int record_count, requested, completed, completed_by_other;
static int refuse_buffers;
static pthread_t main_thread;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static void callback(void *userdata, uint32_t domain, uint32_t cbid, const void *data)
{
	EXPECT(userdata == &enters);
	if (domain == RESOURCE) {
		const void *const *resource = data;
		const uint32_t *descriptor = resource[2];
		const char *cubin = FIELD(descriptor, const char *, 16);
		EXPECT(resource[0] == context && memcmp(cubin, "\177ELF", 4) == 0 && FIELD(descriptor, size_t, 8) > 64);
		*(cbid == MODULE_LOADED ? &loaded : &profiled) += 1;
		return;
	}
	const struct callback_data *call = data;
	if (call->site == 0) {
		EXPECT(*call->correlation_data == 0);
		*call->correlation_data = call->correlation_id + 7ull;
		pthread_mutex_lock(&guard);
		enters++;
		pthread_mutex_unlock(&guard);
		if (enable_inside)
			EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
		return;
	}
	EXPECT(*call->correlation_data == call->correlation_id + 7ull);
	EXPECT(*call->result == 0 && call->context == context && call->context_uid == 1);
	if (domain == DRIVER && cbid == LAUNCH)
		EXPECT(FIELD(call->params, void *, 0) == short_kernel || FIELD(call->params, void *, 0) == long_kernel);
	if (enable_inside)
		EXPECT(cuptiActivityDisable(CONCURRENT_KERNEL) == 0);
	pthread_mutex_lock(&guard);
	exits[exit_count].domain = domain;
	exits[exit_count].id = call->correlation_id;
	snprintf(exits[exit_count++].symbol, 64, "%s", call->symbol ? call->symbol : "(null)");
	pthread_mutex_unlock(&guard);
}

static void request(uint8_t **buffer, size_t *size, size_t *limit)
{
	*limit = 0;
	*size = refuse_buffers ? 0 : 64 * 216;
	*buffer = refuse_buffers ? NULL : aligned_alloc(8, *size);
	__atomic_fetch_add(&requested, 1, __ATOMIC_SEQ_CST);
}

static void complete(void *ctx, uint32_t id, uint8_t *buffer, size_t size, size_t valid)
{
	(void)ctx, (void)id;
	EXPECT(size == 64 * 216 && valid % 216 == 0);
	void *record = NULL;
	int result;
	pthread_mutex_lock(&guard);
	while ((result = cuptiActivityGetNextRecord(buffer, valid, &record)) == 0) {
		EXPECT(FIELD(record, uint32_t, 0) == CONCURRENT_KERNEL);
		records[record_count].id = CORRELATION(record);
		records[record_count].graph = GRAPH(record);
		records[record_count].node = NODE(record);
		records[record_count].start = START(record);
		records[record_count].end = END(record);
		records[record_count++].has_name = NAME(record) != NULL;
	}
	EXPECT(result == 12);
	completed++;
	completed_by_other += !pthread_equal(pthread_self(), main_thread);
	pthread_mutex_unlock(&guard);
	free(buffer);
}

static void subscribe(void)
{
	EXPECT(cuptiSubscribe(&subscriber, callback, &enters) == 0);
	EXPECT(cuptiActivityRegisterCallbacks(request, complete) == 0);
	EXPECT(cuptiEnableCallback(1, subscriber, DRIVER, LAUNCH) == 0);
	EXPECT(cuptiEnableCallback(1, subscriber, DRIVER, GRAPH_LAUNCH) == 0);
}

static void sleep_ms(int ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
	nanosleep(&time, NULL);
}

/* Every launch has its callbacks and its record, and they agree. */
static void launches(void)
{
	void *second;
	subscribe();
	EXPECT(cuptiSubscribe(&second, callback, NULL) == 39);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	for (int at = 0; at < 1000; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuStreamSynchronize(stream) == 0);
	/* Full buffers come from CUPTI's thread, in its own time; a flush takes what it has not come to. */
	for (int wait = 0; wait < PATIENCE_MS && completed_by_other == 0; wait++)
		sleep_ms(1);
	EXPECT(cuptiActivityFlushAll(0) == 0);
	for (int wait = 0; wait < PATIENCE_MS && requested != completed; wait++)
		sleep_ms(1);
	EXPECT(enters == 1000 && exit_count == 1000 && record_count == 1000);
	EXPECT(requested == 16 && completed == 16 && completed_by_other >= 1);
	static char seen[1000];
	for (int at = 0; at < 1000; at++) {
		EXPECT(exits[at].id == exits[0].id + (uint32_t)at && strcmp(exits[at].symbol, "_Z5shortv") == 0);
		uint32_t place = records[at].id - exits[0].id;
		EXPECT(place < 1000 && !seen[place]++);
		EXPECT(records[at].end - records[at].start == 2000 && records[at].graph == 0);
	}
	EXPECT(cuptiActivityDisable(CONCURRENT_KERNEL) == 0);
	EXPECT(launch(short_kernel) == 0 && enters == 1001);
	EXPECT(cuptiUnsubscribe(subscriber) == 0 && cuptiUnsubscribe(subscriber) == 1);
	EXPECT(launch(short_kernel) == 0 && enters == 1001);
	EXPECT(cuptiActivityFlushAll(1) == 0 && record_count == 1000);
	EXPECT(cuptiSubscribe(&subscriber, callback, NULL) == 0);
}

/* A running kernel holds its whole buffer back; what is in flight still arrives after the end. */
static void held_back(void)
{
	subscribe();
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	EXPECT(launch(short_kernel) == 0 && launch(long_kernel) == 0);
	EXPECT(cuptiActivityDisable(CONCURRENT_KERNEL) == 0 && cuptiUnsubscribe(subscriber) == 0);
	EXPECT(cuStreamQuery(stream) == 600);
	EXPECT(cuptiActivityFlushAll(0) == 0 && record_count == 0 && requested == 1);
	EXPECT(cuStreamSynchronize(stream) == 0 && cuStreamQuery(stream) == 0);
	for (int wait = 0; wait < PATIENCE_MS && completed == 0; wait++) {
		EXPECT(cuptiActivityFlushAll(0) == 0);
		sleep_ms(1);
	}
	EXPECT(record_count == 2 && records[1].end - records[1].start == LONG_NS);
}

/* With a buffer per thread a flush beside a long kernel leaves one more buffer; shared, it does not. */
static void buffers_per_thread(void)
{
	subscribe();
	for (uint8_t per_thread = 0; per_thread < 2; per_thread++) {
		size_t size = sizeof per_thread;
		EXPECT(cuptiActivitySetAttribute(9, &size, &per_thread) == 0);
		requested = completed = 0;
		EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
		EXPECT(launch(long_kernel) == 0);
		for (int at = 0; at < 5; at++)
			EXPECT(launch(short_kernel) == 0 && cuptiActivityFlushAll(0) == 0);
		EXPECT(requested == (per_thread ? 5 : 1) && completed == 0);
		EXPECT(cuptiActivityDisable(CONCURRENT_KERNEL) == 0 && cuptiActivityFlushAll(1) == 0);
		EXPECT(completed == requested);
		EXPECT(cuCtxSynchronize() == 0);
	}
}

/* A forced flush takes running kernels' times away for good. */
static void forced(void)
{
	subscribe();
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	EXPECT(launch(long_kernel) == 0 && cuptiActivityFlushAll(1) == 0);
	EXPECT(record_count == 1 && records[0].start == 0 && records[0].end == 0);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(1) == 0 && record_count == 1);
}

/* Captured launches have callbacks and no record; a replay has one id and a record per node. */
static void graphs(void)
{
	void *graph, *exec;
	subscribe();
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	EXPECT(cuStreamBeginCapture_v2(stream, 1) == 0);
	for (int at = 0; at < 10; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuStreamEndCapture(stream, &graph) == 0 && enters == 10);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
	EXPECT(cuptiActivityFlushAll(1) == 0 && record_count == 0);
	EXPECT(cuGraphLaunch(exec, stream) == 0 && cuGraphLaunch(exec, stream) == 0 && enters == 12);
	EXPECT(strcmp(exits[11].symbol, "(null)") == 0);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(0) == 0 && record_count == 20);
	for (int at = 0; at < 20; at++) {
		EXPECT(records[at].id == exits[10 + at / 10].id && records[at].graph != 0 && records[at].node != 0);
		EXPECT(records[at].graph == records[0].graph && records[at].node == records[at % 10].node);
		EXPECT(at % 10 == 0 || records[at].node != records[at - 1].node);
	}
	/* A synchronisation spoils a capture. */
	EXPECT(cuptiUnsubscribe(subscriber) == 0);
	EXPECT(cuStreamBeginCapture_v2(stream, 0) == 0 && launch(short_kernel) == 0);
	EXPECT(cuStreamSynchronize(stream) == 900 && launch(short_kernel) == 901);
	EXPECT(cuStreamEndCapture(stream, &graph) == 901 && graph == NULL);
}

/* Activity turned on in the entry callback covers that launch, and ends with it. */
static void inside(void)
{
	subscribe();
	enable_inside = 1;
	for (int at = 0; at < 10; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuptiEnableCallback(0, subscriber, DRIVER, LAUNCH) == 0);
	for (int at = 0; at < 10; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(0) == 0 && record_count == 10 && enters == 10);
}

static void *launch_many(void *unused)
{
	(void)unused;
	EXPECT(cuCtxSetCurrent(context) == 0);
	for (int at = 0; at < 2000; at++)
		EXPECT(launch(short_kernel) == 0);
	return NULL;
}

/* Many threads, a flusher, calls from callbacks: nothing hangs, nothing is lost. */
static void threads(void)
{
	pthread_t ids[8];
	subscribe();
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	for (int at = 0; at < 8; at++)
		EXPECT(pthread_create(&ids[at], NULL, launch_many, NULL) == 0);
	for (int at = 0; at < 50; at++) {
		EXPECT(cuptiActivityFlushAll(0) == 0);
		sleep_ms(1);
	}
	for (int at = 0; at < 8; at++)
		pthread_join(ids[at], NULL);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(0) == 0);
	for (int wait = 0; wait < PATIENCE_MS && record_count < 16000; wait++)
		sleep_ms(1);
	EXPECT(record_count == 16000 && enters == 16000 && exit_count == 16000);
}

/* A client without memory: records are dropped and counted once. */
static void dropped(void)
{
	size_t lost;
	subscribe();
	refuse_buffers = 1;
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	for (int at = 0; at < 5; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuptiActivityGetNumDroppedRecords(NULL, 0, &lost) == 0 && lost == 5);
	EXPECT(cuptiActivityGetNumDroppedRecords(NULL, 0, &lost) == 0 && lost == 0);
}

/* A runtime call and the driver call inside it have one id, and so has the record. */
static void runtime(void)
{
	subscribe();
	EXPECT(cuptiEnableCallback(1, subscriber, RUNTIME, RUNTIME_LAUNCH) == 0);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	const unsigned grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
	EXPECT(mockrt_launch(short_kernel, grid, block, 0, stream, NULL) == 0);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(0) == 0);
	EXPECT(exit_count == 2 && exits[0].domain == DRIVER && exits[1].domain == RUNTIME);
	EXPECT(record_count == 1 && exits[0].id == exits[1].id && records[0].id == exits[0].id);
}

/* Code is told of when it is loaded, and whenever a kernel of it is launched. */
static void modules(void)
{
	void *library, *kernel, *other;
	subscribe();
	EXPECT(cuptiEnableCallback(1, subscriber, RESOURCE, MODULE_LOADED) == 0);
	EXPECT(cuptiEnableCallback(1, subscriber, RESOURCE, MODULE_PROFILED) == 0);
	EXPECT(profiled == 0 && loaded == 0);
	EXPECT(launch(short_kernel) == 0 && launch(short_kernel) == 0 && profiled == 2);
	EXPECT(cuModuleLoadData(&other, PTX) == 0 && loaded == 1 && profiled == 2);
	/* A library is loaded when its first kernel runs. */
	EXPECT(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0) == 0 && loaded == 1);
	EXPECT(cuLibraryGetKernel(&kernel, library, "_Z5shortv") == 0 && loaded == 1);
	EXPECT(cuptiEnableCallback(0, subscriber, DRIVER, LAUNCH) == 0);
	EXPECT(launch(kernel) == 0 && loaded == 2 && launch(kernel) == 0 && loaded == 2 && profiled == 4);
	EXPECT(cuLibraryUnload(library) == 0 && launch(kernel) == 400);
}

/* Wrong calls get the driver's codes. */
static void errors(void)
{
	void *found;
	int status;
	EXPECT(cuInit(1) == 1);
	EXPECT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 400);
	EXPECT(cuLaunchKernel(short_kernel, 0, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 1);
	EXPECT(cuLaunchKernel(short_kernel, 1, 1, 1, 2048, 1, 1, 0, stream, NULL, NULL) == 1);
	EXPECT(cuModuleLoadData(&found, NULL) == 1 && cuModuleLoadData(NULL, PTX) == 1);
	EXPECT(cuModuleLoadData(&found, "nothing of the kind") == 200);
	EXPECT(cuModuleGetFunction(&found, module, "absent") == 500);
	EXPECT(cuModuleUnload(module) == 0 && cuModuleUnload(module) == 400 && launch(short_kernel) == 400);
	EXPECT(cuCtxSetCurrent(NULL) == 0 && cuCtxSynchronize() == 201);
	void *cuda = open_library("libcuda.so.1");
	EXPECT(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 0, &status) == 0);
	EXPECT(status == 0 && found == dlsym(cuda, "cuLaunchKernel"));
	EXPECT(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 2, &status) == 0);
	EXPECT(found == dlsym(cuda, "cuLaunchKernel_ptsz"));
	EXPECT(cuGetProcAddress_v2("cuNothing", &found, 12000, 0, &status) == 0 && !found && status == 1);
	EXPECT(cuGetProcAddress_v2("mockrt_launch", &found, 12000, 0, &status) == 0 && !found);
}

/* A forked child of an initialised process has no driver. */
static void forked(void)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(cuInit(0) == 3 && launch(short_kernel) == 3 ? 42 : 1);
	EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
	EXPECT(launch(short_kernel) == 0);
}

/* What MOCK_* variables scripted: a fault in the second call only, null names, ids that wrap. */
static void scripted(void)
{
	subscribe();
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 999);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	for (int at = 0; at < 6; at++)
		EXPECT(launch(short_kernel) == 0);
	EXPECT(cuCtxSynchronize() == 0 && cuptiActivityFlushAll(0) == 0 && record_count == 7);
	for (int at = 0; at < 6; at++) {
		EXPECT(exits[at].id == (uint32_t)(at - 3) && strcmp(exits[at].symbol, "(null)") == 0);
		EXPECT(!records[at].has_name);
	}
	EXPECT(records[5].id == records[6].id); /* the sixth comes twice */
}

/* Run without a simulated driver: every call that needs one says so. */
static void foreign(void)
{
	uint32_t version;
	EXPECT(cuptiGetVersion(&version) == 0 && version == 130001);
	EXPECT(cuptiSubscribe(&subscriber, callback, NULL) == 999 && cuptiActivityEnable(10) == 999);
}

/* After cuptiFinalize graphs fail, as measured, and nothing else. */
static void finalized(void)
{
	void *graph, *exec;
	EXPECT(cuStreamBeginCapture_v2(stream, 1) == 0 && launch(short_kernel) == 0);
	EXPECT(cuStreamEndCapture(stream, &graph) == 0 && cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
	subscribe();
	EXPECT(cuptiFinalize() == 0);
	EXPECT(launch(short_kernel) == 0 && enters == 0 && cuGraphLaunch(exec, stream) == 719);
}

static const struct {
	const char *name;
	void (*run)(void);
} SCENARIOS[] = {{"launches", launches}, {"held-back", held_back}, {"buffers-per-thread", buffers_per_thread},
	{"forced", forced}, {"graphs", graphs}, {"inside", inside}, {"threads", threads}, {"dropped", dropped},
	{"runtime", runtime}, {"modules", modules}, {"errors", errors}, {"forked", forked}, {"scripted", scripted},
	{"finalized", finalized}};

int main(int argc, char **argv)
{
	EXPECT(argc == 2);
	main_thread = pthread_self();
	load();
	if (strcmp(argv[1], "foreign") == 0) {
		foreign();
		return 0;
	}
	if (strcmp(argv[1], "forked") != 0)
		EXPECT(cuCtxSynchronize() == 3);
	start_driver();
	for (size_t at = 0; at < sizeof SCENARIOS / sizeof *SCENARIOS; at++) {
		if (strcmp(argv[1], SCENARIOS[at].name) == 0) {
			SCENARIOS[at].run();
			return 0;
		}
	}
	fprintf(stderr, "no such scenario: %s\n", argv[1]);
	return 2;
}
