/* A small library with thread-local data, to be opened and closed again and again. */
static __thread int number = 7;
static volatile int started;

__attribute__((constructor)) static void begin(void)
{
	started = 1;
}

int churn_number(void)
{
	number++;
	return started ? number-- : 0;
}
