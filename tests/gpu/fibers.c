/* SPDX-License-Identifier: MIT */
/* longjmp between stacks: the checked one of glibc's headers refuses it */
#undef _FORTIFY_SOURCE
#define _DEFAULT_SOURCE /* _setjmp: saves no signal mask, ten times faster */
#define _XOPEN_SOURCE 700
#include "fibers.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include "plugins/gpu/kernel.h"

enum { STACK_BYTES = 128 << 10, MOST_THREADS = 1024 };
enum state { RUNNING, AT_BARRIER, IN_WAVE, DONE };

struct fiber {
	ucontext_t start;
	jmp_buf resume;
	void *fake_stack; /* of the address sanitizer */
	int started;
	enum state state;
};

static struct {
	const struct gpu_launch *launch;
	struct fiber *fibers;
	char *stacks;
	jmp_buf scheduler;
	void *scheduler_fake_stack;
	const void *scheduler_stack;
	size_t scheduler_bytes;
	unsigned int current;
	unsigned int block[3];
	const void *posted[MOST_THREADS];
	const char *error;
} run;

/* every GPU_SHARED variable of this program or library; weak, for there may be none */
extern char __start_gpu_lds[] __attribute__((weak, visibility("hidden")));
extern char __stop_gpu_lds[] __attribute__((weak, visibility("hidden")));

/* ---- switching; the sanitizer must be told which stack is in use ---- */

static void leave_fiber(enum state state)
{
	struct fiber *fiber = &run.fibers[run.current];

	fiber->state = state;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(state == DONE ? NULL : &fiber->fake_stack,
	                               run.scheduler_stack, run.scheduler_bytes);
#endif
	if (_setjmp(fiber->resume) == 0)
		_longjmp(run.scheduler, 1);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(run.fibers[run.current].fake_stack,
	                                &run.scheduler_stack, &run.scheduler_bytes);
#endif
}

static void fiber_main(void)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(NULL, &run.scheduler_stack,
	                                &run.scheduler_bytes);
#endif
	run.launch->call(run.launch->kernel, run.launch->args);
	leave_fiber(DONE);
}

/* not inlined: a caller's variables must not live across its _setjmp */
static __attribute__((noinline)) void enter_fiber(unsigned int thread)
{
	run.current = thread;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&run.scheduler_fake_stack,
	                               run.stacks + (size_t)thread * STACK_BYTES,
	                               STACK_BYTES);
#endif
	if (_setjmp(run.scheduler) == 0) {
		struct fiber *fiber = &run.fibers[run.current];

		if (!fiber->started) {
			fiber->started = 1;
			setcontext(&fiber->start);
		}
		_longjmp(fiber->resume, 1);
	}
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(run.scheduler_fake_stack, NULL, NULL);
#endif
}

/* ---- what kernel.h calls ---- */

gpu_u32 gpu_cpu_thread(void)
{
	return run.current;
}

gpu_u32 gpu_cpu_block(int axis)
{
	return run.block[axis];
}

void gpu_cpu_barrier(void)
{
	leave_fiber(AT_BARRIER);
}

const void *const *gpu_cpu_post(const void *value)
{
	run.posted[run.current] = value;
	leave_fiber(IN_WAVE);
	return &run.posted[run.current / run.launch->wave * run.launch->wave];
}

void gpu_cpu_done(void)
{
	leave_fiber(IN_WAVE);
}

void gpu_cpu_fault(const char *text)
{
	run.error = text;
}

/* ---- scheduling ---- */

/* 0, 1 .. count - 1, or backwards */
static unsigned int turn(unsigned int i, unsigned int count)
{
	return run.launch->reverse ? count - 1 - i : i;
}

static unsigned int count_state(unsigned int first, unsigned int count,
                                enum state state)
{
	unsigned int i, found = 0;

	for (i = 0; i < count; i++)
		found += run.fibers[first + i].state == state;
	return found;
}

static void release(unsigned int first, unsigned int count, enum state from)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (run.fibers[first + i].state == from)
			run.fibers[first + i].state = RUNNING;
}

/* until all lanes stand at a barrier or are done */
static void run_wave(unsigned int first)
{
	const unsigned int lanes = run.launch->wave;

	for (;;) {
		unsigned int i, waiting;

		for (i = 0; i < lanes; i++) {
			unsigned int thread = first + turn(i, lanes);

			if (run.fibers[thread].state == RUNNING)
				enter_fiber(thread);
		}
		waiting = count_state(first, lanes, IN_WAVE);
		if (waiting == 0)
			return;
		if (waiting != lanes) {
			run.error = "a wave operation that not all lanes reach";
			return;
		}
		release(first, lanes, IN_WAVE);
	}
}

/* not inlined, as enter_fiber */
static __attribute__((noinline)) void start_fiber(unsigned int thread)
{
	struct fiber *fiber = &run.fibers[thread];

	getcontext(&fiber->start);
	fiber->start.uc_stack.ss_sp = run.stacks + (size_t)thread * STACK_BYTES;
	fiber->start.uc_stack.ss_size = STACK_BYTES;
	fiber->start.uc_link = NULL;
	makecontext(&fiber->start, fiber_main, 0);
	fiber->started = 0;
	fiber->state = RUNNING;
}

static void run_block(void)
{
	const unsigned int threads = run.launch->threads;
	const unsigned int lanes = run.launch->wave, waves = threads / lanes;
	unsigned int i;

	if (__start_gpu_lds != NULL) /* weak: kernels may have none */
		memset(__start_gpu_lds, 0xff,
		       (size_t)(__stop_gpu_lds - __start_gpu_lds));
	for (i = 0; i < threads; i++)
		start_fiber(i);
	while (run.error == NULL && count_state(0, threads, DONE) != threads) {
		for (i = 0; run.error == NULL && i < waves; i++)
			run_wave(turn(i, waves) * lanes);
		if (run.error == NULL && count_state(0, threads, DONE) != threads) {
			if (count_state(0, threads, AT_BARRIER) != threads)
				run.error = "a barrier that not all threads reach";
			release(0, threads, AT_BARRIER);
		}
	}
}

int gpu_fibers_run(const struct gpu_launch *launch, const char **error_out)
{
	const unsigned int *grid = launch->grid;
	unsigned int x, y, z;

	memset(&run, 0, sizeof(run));
	run.launch = launch;
	run.fibers = calloc(launch->threads, sizeof(*run.fibers));
	run.stacks = malloc((size_t)launch->threads * STACK_BYTES);
	if (run.fibers == NULL || run.stacks == NULL)
		run.error = "out of memory";
	for (z = 0; z < grid[2]; z++)
		for (y = 0; y < grid[1]; y++)
			for (x = 0; run.error == NULL && x < grid[0]; x++) {
				run.block[0] = turn(x, grid[0]);
				run.block[1] = turn(y, grid[1]);
				run.block[2] = turn(z, grid[2]);
				run_block();
			}
	free(run.stacks);
	free(run.fibers);
	*error_out = run.error;
	return run.error != NULL;
}
