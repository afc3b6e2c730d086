/* The library to be hooked: function bodies that begin as a driver's do, and
 * some that cannot be hooked. ID tells copies apart. */
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#ifdef PAD
/* To have another size, and so another place in memory. */
volatile char pad[PAD] = {1};
#endif

static volatile int calls;
static volatile int enabled = 1;

__attribute__((visibility("default"))) int targetInit(unsigned flags)
{
    if (!enabled)
        return -1;
    calls++;
    return ID * 100 + (int)flags;
}

/* As many arguments as a launch: five of them on the stack. */
__attribute__((visibility("default"))) int targetLaunch(void *f, unsigned a, unsigned b, unsigned c, unsigned d,
                                                        unsigned e, unsigned g, unsigned h, void *s, void **p,
                                                        void **x)
{
    if (!enabled)
        return -1;
    calls++;
    return (int)((uintptr_t)f + 2 * a + 3 * b + 5 * c + 7 * d + 11 * e + 13 * g + 17 * h +
                 19 * (unsigned)(uintptr_t)s + 23 * (unsigned)(uintptr_t)p + 29 * (unsigned)(uintptr_t)x);
}

/* Fails or not as errno was when it was called, and leaves its own. */
__attribute__((visibility("default"))) int targetErrno(int value)
{
    int before = errno;
    if (!enabled)
        return -1;
    calls++;
    errno = value;
    return before;
}

/* Calls an exported function of its own. */
__attribute__((visibility("default"))) int targetInner(unsigned flags)
{
    int result = targetInit(flags);
    return result < 0 ? result : result + 1000;
}

/* May be cancelled. */
__attribute__((visibility("default"))) int targetWait(int microseconds)
{
    if (!enabled)
        return -1;
    return usleep(microseconds);
}

/* May be left by a jump. */
__attribute__((visibility("default"))) int targetCall(void (*f)(void))
{
    if (!enabled)
        return -1;
    f();
    return 6;
}

__attribute__((visibility("default"))) int targetCalls(void) { return calls; }

__asm__(".text\n"
        ".globl targetShort\n.type targetShort, @function\n"
        "targetShort: xorl %eax, %eax\n ret\n"
        ".size targetShort, .-targetShort\n"
        ".globl targetJump\n.type targetJump, @function\n"
        "targetJump: jmp targetTail\n .skip 27, 0x90\n"
        ".size targetJump, .-targetJump\n"
        /* Three times round, back to the second instruction. */
        ".globl targetBack\n.type targetBack, @function\n"
        "targetBack: movl $3, %eax\n"
        "1: addl $4, %edi\n subl $1, %eax\n jnz 1b\n"
        " movl %edi, %eax\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n ret\n"
        ".size targetBack, .-targetBack\n"
        /* The same, back into the first five bytes. */
        ".globl targetLoop\n.type targetLoop, @function\n"
        "targetLoop: xorl %eax, %eax\n"
        "1: addl %edi, %eax\n subl $1, %edi\n jnz 1b\n"
        " nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n ret\n"
        ".size targetLoop, .-targetLoop\n"
        "targetTail: leal 77(%rdi), %eax\n ret\n"
        ".globl targetAlias\n.type targetAlias, @function\n"
        ".set targetAlias, targetInit\n .size targetAlias, 40\n");

#ifdef CONSTRUCTOR
__attribute__((constructor)) static void begin(void) { targetInit(9); }
#endif
