/* What the demo is asked to do. */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

enum kind { EAGER, GRAPH, LONG };
enum via { VIA_KERNEL, VIA_EX, VIA_COOPERATIVE, VIA_RUNTIME };

/* One group of threads that do the same. */
struct worker {
	enum kind kind;
	enum via via;
	int per_thread_stream; /* the _ptsz functions on the null stream */
	int threads;
	long launches; /* per thread, -1: no limit */
	double seconds; /* 0: no limit */
	double rate; /* a second and thread, 0: as fast as it can */
	int nodes; /* of a graph */
	int capture; /* make the graph by stream capture */
};

#define MAX_WORKERS 32

struct options {
	struct worker workers[MAX_WORKERS];
	int worker_count;
	int streams, modules;
	double hold;
	unsigned long long long_ns;
};

/* Ends the program with status 2 and a usage text when it does not understand. */
void parse_options(int argc, char **argv, struct options *options);

#endif
