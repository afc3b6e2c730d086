// What a push and its pop cost. Says `ready PID`, waits for a line on stdin, then prints the cheapest and
// the middle round in ns per pair.
//
//   cost ROUNDS PAIRS PAUSE_MS      rounds of so many pairs, with a pause after each
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int rounds = atoi(argv[1]), pairs = atoi(argv[2]), pause_ms = atoi(argv[3]);
	double *took = calloc(rounds, sizeof(*took));
	char line[16];

	if (!took)
		return 1;
	nvtxRangePushA("first");
	nvtxRangePop();
	printf("ready %d\n", getpid());
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (int r = 0; r < rounds; r++) {
		double begin = now_ns();
		for (int i = 0; i < pairs; i++) {
			nvtxRangePushA("a range of the benchmark");
			nvtxRangePop();
		}
		took[r] = (now_ns() - begin) / pairs;
		usleep(pause_ms * 1000);
	}
	qsort(took, rounds, sizeof(*took), ascending);
	printf("%.2f %.2f\n", took[0], took[rounds / 2]);
	return 0;
}
