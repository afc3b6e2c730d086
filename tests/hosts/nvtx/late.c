// Calls at moments when others have ended their work: destructors of threads and of the process.
#include "all.h"

static pthread_key_t key;

static void of_thread(void *unused)
{
	(void)unused;
	nvtxMarkA("destructor of a thread");
}

static void *thread(void *unused)
{
	pthread_setspecific(key, &key);
	nvtxMarkA("of the thread");
	return unused;
}

static void at_exit(void)
{
	nvtxMarkA("at exit");
}

__attribute__((destructor)) static void at_end(void)
{
	nvtxMarkA("destructor of the program");
}

int main(void)
{
	pthread_t other;

	// Before any tool is there, so that it runs after the tool's own.
	atexit(at_exit);
	if (pthread_key_create(&key, of_thread) || pthread_create(&other, NULL, thread, NULL))
		return 1;
	pthread_join(other, NULL);
	nvtxMarkA("of main");
	return 0;
}
