/* PC sampling of the simulated CUPTI; the name of a scenario is the argument. Each checks itself. */
#include "client.h"

#include <pthread.h>
#include <unistd.h>

enum { PERIOD = 1, HARDWARE_BUFFER = 4, MODE = 5, START_STOP = 6, DATA_BUFFER = 8, SERIALIZED = 2 };
enum { RECORDS = 256, REASONS = 128, SUBSCRIBED_LAUNCH = 307, MODULE_PROFILED = 8, CONCURRENT_KERNEL = 10 };

struct head {
	size_t size;
	void *private;
	void *context;
};
struct reason {
	uint32_t index, samples;
};
struct record {
	size_t size;
	uint64_t crc, offset;
	uint32_t symbol, pad;
	char *name;
	size_t reason_count;
	struct reason *reasons;
	uint32_t id, pad2;
};
struct data {
	size_t size, capacity;
	uint64_t total, dropped;
	size_t count, remaining;
	uint64_t range;
	struct record *records;
	uint64_t foreign;
	uint8_t full;
};
struct attribute {
	uint32_t type;
	int32_t status;
	uint64_t value[3];
};

static struct reason room[RECORDS][REASONS];
static struct record records[RECORDS];
static struct data data;
static char names[REASONS][128];
static uint32_t indices[REASONS];
static size_t reason_total;

static int call(int (*function)(void *), void *of)
{
	struct head head = {sizeof head, NULL, of};
	return function(&head);
}

static int fetch_up_to(void *of, size_t capacity)
{
	struct {
		struct head head;
		struct data *data;
	} params = {{sizeof params, NULL, of}, &data};
	for (int at = 0; at < RECORDS; at++) {
		records[at] = (struct record){.size = sizeof records[at], .reasons = room[at], .id = 77};
	}
	data = (struct data){.size = sizeof data, .capacity = capacity, .records = records};
	return cuptiPCSamplingGetData(&params);
}

static int fetch(void) { return fetch_up_to(context, RECORDS); }

static int set(uint32_t type, uint64_t value, int *status)
{
	struct attribute attribute = {type, -1, {value, 0, 0}};
	struct {
		struct head head;
		size_t count;
		struct attribute *attributes;
	} params = {{sizeof params, NULL, context}, 1, &attribute};
	int result = cuptiPCSamplingSetConfigurationAttribute(&params);
	if (status)
		*status = attribute.status;
	return result;
}

static void enable(uint32_t period, uint32_t mode, uint32_t control)
{
	EXPECT(call(cuptiPCSamplingEnable, context) == 0);
	EXPECT(set(PERIOD, period, NULL) == 0 && set(MODE, mode, NULL) == 0 && set(START_STOP, control, NULL) == 0);
}

static void *kernel(const char *name)
{
	void *found;
	EXPECT(cuModuleGetFunction(&found, module, name) == 0);
	return found;
}

static void read_reasons(void)
{
	struct {
		struct head head;
		size_t *count;
	} number = {{sizeof number, NULL, context}, &reason_total};
	EXPECT(cuptiPCSamplingGetNumStallReasons(&number) == 0 && reason_total <= REASONS);
	char *places[REASONS];
	for (int at = 0; at < REASONS; at++)
		places[at] = names[at];
	struct {
		struct head head;
		size_t count;
		uint32_t *indices;
		char **names;
	} table = {{sizeof table, NULL, context}, reason_total, indices, places};
	EXPECT(cuptiPCSamplingGetStallReasons(&table) == 0);
}

static const char *reason_name(uint32_t index)
{
	for (size_t at = 0; at < reason_total; at++)
		if (indices[at] == index)
			return names[at];
	return "";
}

static int is_part(uint32_t index) { return strstr(reason_name(index), "_not_issued") != NULL; }

/* Samples of the records whose name contains a text. */
static uint64_t samples_of(const char *text)
{
	uint64_t sum = 0;
	for (size_t at = 0; at < data.count; at++)
		for (size_t reason = 0; strstr(records[at].name, text) && reason < records[at].reason_count; reason++)
			if (!is_part(records[at].reasons[reason].index))
				sum += records[at].reasons[reason].samples;
	return sum;
}

static int close_to(uint64_t value, uint64_t wanted) { return value + 2 >= wanted && value <= wanted + 2; }

/* Records add up: shares are those of the kernels' times, a part is smaller than its whole. */
static void continuous(void)
{
	void *one = kernel("one_ns1000000"), *three = kernel("three_ns3000000");
	read_reasons();
	enable(20, 1, 0);
	for (int at = 0; at < 5; at++)
		EXPECT(launch(one) == 0 && launch(three) == 0);
	EXPECT(cuStreamSynchronize(stream) == 0 && fetch() == 0);
	EXPECT(data.count == 16 && data.remaining == 0 && data.dropped == 0 && data.foreign == 0 && !data.full);
	EXPECT(close_to(samples_of("one"), 500) && close_to(samples_of("three"), 1500) && close_to(data.total, 2000));
	for (size_t at = 0; at < data.count; at++) {
		EXPECT(records[at].offset % 16 == 0 && records[at].offset < 1024 && records[at].id == 0);
		EXPECT(records[at].symbol == (strstr(records[at].name, "one") ? 3 : 4) && records[at].crc == records[0].crc);
		uint32_t whole = 0;
		for (size_t reason = 0; reason < records[at].reason_count; reason++) {
			struct reason *now = &records[at].reasons[reason];
			EXPECT(strncmp(reason_name(now->index), "smsp__pcsamp_warps_issue_stalled_", 33) == 0);
			EXPECT(!is_part(now->index) || now->samples <= whole);
			whole = now->samples;
		}
		for (size_t other = 0; other < at; other++)
			EXPECT((records[other].name == records[at].name) == !strcmp(records[other].name, records[at].name));
	}
	const char *name = records[0].name;
	EXPECT(fetch() == 0 && data.count == 0 && data.total == 0);
	/* What there is no room for comes next time; a shorter period gives more samples. */
	EXPECT(set(PERIOD, 18, NULL) == 0 && launch(one) == 0 && cuStreamSynchronize(stream) == 0);
	EXPECT(fetch_up_to(context, 3) == 0 && data.count == 3 && data.remaining == 5 && records[0].name == name);
	uint64_t total = data.total;
	EXPECT(fetch() == 0 && data.count == 5 && data.remaining == 0 && close_to(total + data.total, 400));
	/* What is left at the end goes where the client wants it. */
	EXPECT(launch(one) == 0 && set(DATA_BUFFER, (uint64_t)&data, NULL) == 0);
	data.count = 0;
	EXPECT(call(cuptiPCSamplingDisable, context) == 0 && data.count == 8 && close_to(data.total, 400) && fetch() == 7);
}

/* A late call of enable, beside a thread that launches, is safe; a kernel is sampled while it runs. */
static void *launch_all_the_time(void *stop)
{
	EXPECT(cuCtxSetCurrent(context) == 0);
	while (!__atomic_load_n((int *)stop, __ATOMIC_SEQ_CST))
		EXPECT(launch(short_kernel) == 0);
	return NULL;
}

static void late(void)
{
	pthread_t thread;
	int stop = 0;
	EXPECT(pthread_create(&thread, NULL, launch_all_the_time, &stop) == 0);
	usleep(20000);
	read_reasons();
	EXPECT(call(cuptiPCSamplingEnable, context) == 0 && set(PERIOD, 20, NULL) == 0);
	/* Until the thread has launched since the last time, which is soon or the client is killed. */
	for (int came = 0; came < 20; came += data.count > 0) {
		usleep(5000);
		EXPECT(fetch() == 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	EXPECT(cuStreamSynchronize(stream) == 0 && fetch() == 0);
	EXPECT(launch(long_kernel) == 0);
	usleep(100000);
	EXPECT(fetch() == 0 && samples_of("long") > 50000 && samples_of("long") < LONG_NS / 1000 - 10000);
}

static uint32_t announced[64];
static int announced_count;

static void remember(void *userdata, uint32_t domain, uint32_t cbid, const void *call)
{
	(void)userdata, (void)domain, (void)cbid;
	if (((const struct callback_data *)call)->site == 0)
		announced[announced_count++] = ((const struct callback_data *)call)->correlation_id;
}

/* One kernel at a time, each record with its launch; only between start and stop. */
static void serialized(void)
{
	void *one = kernel("one_ns1000000"), *subscriber;
	struct timespec before, after;
	read_reasons();
	EXPECT(cuptiSubscribe(&subscriber, remember, NULL) == 0);
	EXPECT(cuptiEnableCallback(1, subscriber, 1, SUBSCRIBED_LAUNCH) == 0);
	enable(20, SERIALIZED, 1);
	EXPECT(launch(one) == 0 && cuStreamSynchronize(stream) == 0 && fetch() == 0 && data.count == 0);
	EXPECT(call(cuptiPCSamplingStop, context) == 7);
	EXPECT(call(cuptiPCSamplingStart, context) == 0 && call(cuptiPCSamplingStart, context) == 7);
	clock_gettime(CLOCK_MONOTONIC, &before);
	EXPECT(launch(one) == 0 && launch(one) == 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	EXPECT((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec >= 2000000);
	EXPECT(call(cuptiPCSamplingStop, context) == 0 && launch(one) == 0 && cuStreamSynchronize(stream) == 0);
	EXPECT(fetch() == 0 && data.count == 16 && data.range == 1 && close_to(data.total, 200));
	for (int at = 0; at < 16; at++)
		EXPECT(records[at].id == announced[1] || records[at].id == announced[2]);
}

static int asked;

static void our_crc(const void *cubin, size_t size, uint64_t *crc)
{
	EXPECT(memcmp(cubin, "\177ELF", 4) == 0 && size > 64);
	asked++;
	*crc = 0x123456789abcdefull;
}

/* Kernel activity that is on goes on, and cannot be turned on. */
static void activity(void)
{
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
	enable(20, 1, 0);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 0 && cuptiActivityDisable(CONCURRENT_KERNEL) == 0);
	EXPECT(cuptiActivityEnable(CONCURRENT_KERNEL) == 14);
	EXPECT(call(cuptiPCSamplingDisable, context) == 0 && cuptiActivityEnable(CONCURRENT_KERNEL) == 0);
}

/* A checksum of the client's own, asked for once a module. */
static void checksums(void)
{
	EXPECT(cuptiRegisterComputeCrcCallback(our_crc) == 0);
	enable(20, 1, 0);
	for (int at = 0; at < 3; at++) {
		EXPECT(launch(kernel("one_ns1000000")) == 0 && cuStreamSynchronize(stream) == 0 && fetch() == 0);
		EXPECT(data.count == 8 && records[7].crc == 0x123456789abcdefull && asked == 1);
	}
}

static int thread_is_there;

/* Until a thread is about to make its call, and then long enough for it to be inside. */
static void wait_for_thread(void)
{
	while (!__atomic_load_n(&thread_is_there, __ATOMIC_SEQ_CST))
		usleep(1000);
	usleep(300000);
}

static void *stop_now(void *unused)
{
	(void)unused;
	__atomic_store_n(&thread_is_there, 1, __ATOMIC_SEQ_CST);
	EXPECT(call(cuptiPCSamplingStop, context) == 0);
	return NULL;
}

/* Stop waits for the kernels that are queued, and who fetches waits for stop. */
static void waits(void)
{
	pthread_t thread;
	struct timespec before, after;
	enable(20, 1, 1);
	EXPECT(call(cuptiPCSamplingStart, context) == 0);
	clock_gettime(CLOCK_MONOTONIC, &before);
	EXPECT(launch(long_kernel) == 0);
	EXPECT(pthread_create(&thread, NULL, stop_now, NULL) == 0);
	wait_for_thread();
	EXPECT(fetch() == 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	EXPECT((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec >= LONG_NS);
	pthread_join(thread, NULL);
}

static void *one_long_launch(void *unused)
{
	(void)unused;
	EXPECT(cuCtxSetCurrent(context) == 0);
	__atomic_store_n(&thread_is_there, 1, __ATOMIC_SEQ_CST);
	EXPECT(launch(long_kernel) == 0);
	return NULL;
}

/* Stop while another thread is inside a launch: never returns on hardware. */
static void launch_inside(void)
{
	pthread_t thread;
	enable(20, SERIALIZED, 1);
	EXPECT(call(cuptiPCSamplingStart, context) == 0);
	EXPECT(pthread_create(&thread, NULL, one_long_launch, NULL) == 0);
	wait_for_thread();
	call(cuptiPCSamplingStop, context);
}

static void stop_inside(void *userdata, uint32_t domain, uint32_t cbid, const void *resource)
{
	(void)userdata, (void)domain, (void)cbid, (void)resource;
	call(cuptiPCSamplingStop, context);
}

/* The same from inside the thread's own launch. */
static void own_launch(void)
{
	void *subscriber;
	EXPECT(cuptiSubscribe(&subscriber, stop_inside, NULL) == 0);
	EXPECT(cuptiEnableCallback(1, subscriber, 3, MODULE_PROFILED) == 0);
	enable(20, SERIALIZED, 1);
	EXPECT(call(cuptiPCSamplingStart, context) == 0);
	launch(short_kernel);
}

/* What is scripted happens. */
static void scripted(void)
{
	int status;
	EXPECT(call(cuptiPCSamplingEnable, context) == 35 && call(cuptiPCSamplingEnable, context) == 0);
	EXPECT(set(PERIOD, 20, &status) == 1 && status == 7 && set(HARDWARE_BUFFER, 1 << 20, &status) == 1 && status == 7);
	read_reasons();
	EXPECT(reason_total == 100);
	EXPECT(launch(kernel("one_ns1000000")) == 0 && cuStreamSynchronize(stream) == 0);
	EXPECT(fetch() == 8 && data.full == 1 && data.count == 0 && fetch() == 8);
	EXPECT(fetch() == 0 && data.count == 8 && data.full == 0 && data.dropped == 5 && data.foreign == 6);
	uint32_t most = 0, least = 1000;
	for (size_t at = 0; at < records[0].reason_count; at++) {
		uint32_t index = records[0].reasons[at].index;
		EXPECT(reason_name(index)[0]);
		most = index > most ? index : most;
		least = index < least ? index : least;
	}
	EXPECT(most == 200 && least < 64 && samples_of("one") == data.total - 11);
	EXPECT(call(cuptiPCSamplingDisable, context) == 0 && call(cuptiPCSamplingEnable, context) == 0);
}

/* A period that was set silences sampling. */
static void silenced(void)
{
	EXPECT(call(cuptiPCSamplingEnable, context) == 0 && set(PERIOD, 20, NULL) == 0);
	EXPECT(launch(kernel("one_ns1000000")) == 0 && cuStreamSynchronize(stream) == 0 && fetch() == 0 && data.count == 0);
	EXPECT(call(cuptiPCSamplingDisable, context) == 0 && call(cuptiPCSamplingEnable, context) == 0);
	EXPECT(launch(kernel("one_ns1000000")) == 0 && cuStreamSynchronize(stream) == 0 && fetch() == 0 && data.count == 8);
}

/* A context that goes takes its samples along. */
static void destroyed(void)
{
	void *gone;
	EXPECT(cuCtxCreate_v2(&gone, 0, 0) == 0 && call(cuptiPCSamplingEnable, gone) == 0);
	EXPECT(cuCtxDestroy_v2(gone) == 0);
	EXPECT(fetch_up_to(gone, 1) == 3 && call(cuptiPCSamplingDisable, gone) == 3);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{"continuous", continuous}, {"late", late}, {"serialized", serialized}, {"checksums", checksums},
		{"waits", waits}, {"launch-inside", launch_inside}, {"own-launch", own_launch}, {"scripted", scripted},
		{"silenced", silenced}, {"destroyed", destroyed}, {"activity", activity},
	};
	EXPECT(argc == 2);
	load();
	start_driver();
	for (size_t at = 0; at < sizeof scenarios / sizeof *scenarios; at++)
		if (!strcmp(argv[1], scenarios[at].name)) {
			scenarios[at].run();
			return 0;
		}
	fprintf(stderr, "no scenario %s\n", argv[1]);
	return 2;
}
