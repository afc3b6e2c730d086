/* The sections of the transcript; each runs in a process of its own. */
#pragma once

extern const char *libcudart; /* NULL: section `runtime` is not run */

void names(void);
void subscribing(void);
void activity_results(void);
void attributes(void);
void entry_points(void);
void launches(void);
void failing(void);
void failing_null_function(void);
void failing_null_graph(void);
void graphs(void);
void graphs_of_before(void);
void windows(void);
void capturing(void);
void flush_beside_running_kernel(void);
void unsubscribe_with_work_queued(void);
void hand_over_without_force(void);
void hand_over_forced(void);
void threads_one_buffer(void);
void threads_buffer_each(void);
void at_exit(void);
void modules(void);
void injection(void);
void runtime(void);
