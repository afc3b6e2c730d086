/* Forbids itself to make memory executable that was not, for good, and becomes another program. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

int main(int argc, char **argv)
{
	if (argc < 2 || prctl(PR_SET_MDWE, 1L, 0L, 0L, 0L))
		return 77;
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
