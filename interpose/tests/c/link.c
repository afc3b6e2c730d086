/* A library between the program and the target. NEXT: a library to open by
 * bare name (found only by this library's own RUNPATH); EARLY: in a
 * constructor. Without NEXT the target is linked. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef NEXT
static int (*function)(unsigned);

static void open_next(void)
{
    void *handle = dlopen(NEXT, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        printf("error: %s\n", dlerror());
        return;
    }
    function = (int (*)(unsigned))dlsym(handle, FUNCTION);
    if (function)
        printf("early %d\n", function(1));
}

#ifdef EARLY
__attribute__((constructor)) static void begin(void) { open_next(); }
#endif

int linkCall(unsigned flags)
{
    if (!function)
        open_next();
    return function ? function(flags) : -2;
}
#else
int targetInit(unsigned flags);
int linkCall(unsigned flags) { return targetInit(flags); }
#endif
