/* Shared by the parts of the host program. */
#pragma once

/* Prints to stdout at once, whole. */
void say(const char *format, ...);
/* Ends the program with status 70. */
void die(const char *what, int code) __attribute__((noreturn));

/* exit() on a thread of its own. */
void exit_from_thread(int status);
/* Closes everything above 2. */
void close_descriptors(void);
/* Opens and writes a file, as the lowest free descriptor; left open. */
void own_file(const char *path);
/* Blocks SIGTERM, SIGUSR1, SIGALRM and SIGPROF on this thread. */
void block_signals(void);
/* Sends each of them so many times, and takes it by sigwait. */
void signal_self(long times);
/* Prints blocked, ignored and caught signals. */
void print_masks(void);
/* Prints how many descriptors above 2 are open. */
void print_descriptors(void);
/* Calls InitializeInjection of a library from so many threads at once. */
void inject(const char *path, int count);
