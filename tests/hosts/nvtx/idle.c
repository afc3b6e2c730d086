// A thread that says something and then sleeps, without CUDA. Gates around everything.
#include "all.h"

int main(void)
{
	nvtxDomainHandle_t domain = nvtxDomainCreateA("early domain");
	nvtxEventAttributes_t a = worded("in the domain", 0);

	nvtxNameOsThreadA((uint32_t)getpid(), "early thread");
	nvtxMarkA("nobody hears this");
	gate();
	nvtxRangePushA("then it sleeps");
	nvtxDomainMarkEx(domain, &a);
	gate();
	for (;;) {
		char line[16];

		// Nobody listens any more: these begin no thread.
		nvtxRangePushA("unheard");
		nvtxRangePop();
		puts("gate");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 0;
	}
}
