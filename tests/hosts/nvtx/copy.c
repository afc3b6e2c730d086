// One NVTX client of several in a process: built as a library with functions named after COPY.
#include "all.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(what) JOIN(JOIN(COPY, _), what)

nvtxDomainHandle_t NAME(domain)(const char *name)
{
	return nvtxDomainCreateA(name);
}

nvtxStringHandle_t NAME(string)(nvtxDomainHandle_t domain, const char *text)
{
	return nvtxDomainRegisterStringA(domain, text);
}

nvtxRangeId_t NAME(start)(nvtxDomainHandle_t domain, nvtxStringHandle_t text)
{
	nvtxEventAttributes_t a = registered(text);

	return nvtxDomainRangeStartEx(domain, &a);
}

void NAME(end)(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
	nvtxDomainRangeEnd(domain, id);
}

void NAME(push)(nvtxDomainHandle_t domain, nvtxStringHandle_t text)
{
	nvtxEventAttributes_t a = registered(text);

	nvtxDomainRangePushEx(domain, &a);
}

void NAME(pop)(nvtxDomainHandle_t domain)
{
	nvtxDomainRangePop(domain);
}

void NAME(destroy)(nvtxDomainHandle_t domain)
{
	nvtxDomainDestroy(domain);
}
