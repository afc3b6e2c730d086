/* Command line of the demo. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] =
	"usage: demo [OPTIONS]\n"
	"  --threads N      threads (1)\n"
	"  --launches N     launches per thread (1000)\n"
	"  --seconds S      run that long instead\n"
	"  --rate R         launches a second and thread, evenly spaced; 0: as fast as it can (0)\n"
	"  --graph-nodes N  launch graphs of N kernels instead of kernels\n"
	"  --streams N      streams that the launches rotate over (1)\n"
	"  --modules N      modules that the launches rotate over (1)\n"
	"  --hold S         stay idle before exit (0)\n"
	"  --via V          kernel, ex, cooperative or runtime (simulated driver only); with -ptsz behind it the\n"
	"                   per-thread-stream twin on the null stream\n"
	"  --worker SPEC    a group of threads, any number of times, instead of the above:\n"
	"                   eager|graph|long[:KEY=VALUE,...], keys threads, launches, seconds, rate, nodes, via,\n"
	"                   capture (1: graph by stream capture); long kernels run --long-ns each\n"
	"  --long-ns N      (50000000)\n";

static void fail(const char *what, const char *value)
{
	fprintf(stderr, "demo: %s '%s'\n%s", what, value, USAGE);
	exit(2);
}

static double number(const char *text)
{
	char *end;
	double value = strtod(text, &end);
	if (end == text || *end || value < 0)
		fail("not a number:", text);
	return value;
}

static void set_via(struct worker *worker, const char *text)
{
	static const char *const NAMES[] = {"kernel", "ex", "cooperative", "runtime"};
	for (int via = 0; via < 4; via++) {
		size_t length = strlen(NAMES[via]);
		if (strncmp(text, NAMES[via], length) == 0 && (!text[length] || strcmp(text + length, "-ptsz") == 0)) {
			worker->via = (enum via)via;
			worker->per_thread_stream = text[length] != 0;
			return;
		}
	}
	fail("no such way to launch:", text);
}

/* One setting; returns 0 when the key is none. */
static int set(struct worker *worker, const char *key, const char *value)
{
	if (strcmp(key, "threads") == 0)
		worker->threads = (int)number(value);
	else if (strcmp(key, "launches") == 0)
		worker->launches = (long)number(value);
	else if (strcmp(key, "seconds") == 0)
		worker->seconds = number(value);
	else if (strcmp(key, "rate") == 0)
		worker->rate = number(value);
	else if (strcmp(key, "nodes") == 0 || strcmp(key, "graph-nodes") == 0)
		worker->nodes = (int)number(value);
	else if (strcmp(key, "capture") == 0)
		worker->capture = (int)number(value);
	else if (strcmp(key, "via") == 0)
		set_via(worker, value);
	else
		return 0;
	return 1;
}

static void finish(struct worker *worker)
{
	if (worker->launches < 0 && worker->seconds == 0)
		worker->launches = 1000;
	if (worker->kind == GRAPH && worker->nodes < 1)
		worker->nodes = 10;
	if (worker->threads < 1)
		worker->threads = 1;
}

static const struct worker FRESH = {.threads = 1, .launches = -1};

static void parse_worker(struct options *options, char *spec)
{
	if (options->worker_count == MAX_WORKERS)
		fail("too many workers:", spec);
	struct worker worker = FRESH;
	char *settings = strchr(spec, ':');
	if (settings)
		*settings++ = 0;
	if (strcmp(spec, "eager") == 0)
		worker.kind = EAGER;
	else if (strcmp(spec, "graph") == 0)
		worker.kind = GRAPH;
	else if (strcmp(spec, "long") == 0)
		worker.kind = LONG;
	else
		fail("no such worker:", spec);
	for (char *item = settings ? strtok(settings, ",") : NULL; item; item = strtok(NULL, ",")) {
		char *value = strchr(item, '=');
		if (!value)
			fail("not KEY=VALUE:", item);
		*value++ = 0;
		if (!set(&worker, item, value))
			fail("no such key:", item);
	}
	finish(&worker);
	options->workers[options->worker_count++] = worker;
}

void parse_options(int argc, char **argv, struct options *options)
{
	*options = (struct options){.streams = 1, .modules = 1, .long_ns = 50000000};
	struct worker plain = FRESH;
	for (int at = 1; at < argc; at++) {
		const char *option = argv[at];
		if (strcmp(option, "--help") == 0) {
			fputs(USAGE, stdout);
			exit(0);
		}
		if (strncmp(option, "--", 2) != 0)
			fail("no such option:", option);
		if (++at == argc)
			fail("a value is missing after", option);
		char *value = argv[at];
		if (strcmp(option, "--worker") == 0)
			parse_worker(options, value);
		else if (strcmp(option, "--streams") == 0)
			options->streams = (int)number(value);
		else if (strcmp(option, "--modules") == 0)
			options->modules = (int)number(value);
		else if (strcmp(option, "--hold") == 0)
			options->hold = number(value);
		else if (strcmp(option, "--long-ns") == 0)
			options->long_ns = (unsigned long long)number(value);
		else if (!set(&plain, option + 2, value))
			fail("no such option:", option);
	}
	if (options->streams < 1)
		options->streams = 1;
	if (options->modules < 1)
		options->modules = 1;
	if (options->worker_count == 0) {
		plain.kind = plain.nodes > 0 ? GRAPH : EAGER;
		finish(&plain);
		options->workers[options->worker_count++] = plain;
	}
}
