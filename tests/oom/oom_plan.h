/* The preloaded library's orders from the test program: which requests for memory, descriptors and
 * mappings are refused. Only threads that are inside a call of the library count. */
#ifndef MEP_TESTS_OOM_PLAN_H
#define MEP_TESTS_OOM_PLAN_H

#include <stdint.h>

enum {
  OOM_MEMORY = 1u << 0,      /* malloc and its kin, operator new by them */
  OOM_DESCRIPTORS = 1u << 1, /* whatever makes a descriptor */
  OOM_MAPPINGS = 1u << 2,    /* mmap, and the sizes of memory files */
  OOM_THREADS = 1u << 3,     /* pthread_create */
  OOM_SENDING = 1u << 4,     /* sendmsg: no kernel memory */
  OOM_PORTS = 1u << 5        /* bind to a network address: no port is free */
};

enum {
  OOM_CALLERS = 1u << 0, /* threads between oom_enter(1) and oom_enter(0) */
  OOM_LIBRARY = 1u << 1  /* threads that the library has started */
};

typedef struct oom_plan_t {
  uint32_t kinds;
  uint32_t threads;
  uint64_t first;    /* so many requests are granted before */
  uint64_t refusals; /* so many are refused from then on */
} oom_plan_t;

/* Any thread; the counts begin anew. NULL: nothing is refused any more. */
void oom_arm(const oom_plan_t* plan);
/* This thread is inside a call of the library, or has returned from it. */
void oom_enter(int inside);
/* Requests of the plan's kinds and threads, and how many of them were refused, since oom_arm(). */
uint64_t oom_requests(void);
uint64_t oom_refusals(void);

#endif
