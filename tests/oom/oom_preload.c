// Preloaded into a program, refuses memory, descriptors, mappings and threads by a plan (oom_plan.h).
//
// Built with 64-bit offsets as the library is, so that the names are those which it calls.
//
// Nothing in here may allocate: it is what allocates. The plan is written before it is armed, and
// `armed` publishes it; counts are relaxed, for they order nothing.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/types.h>

#include "oom_plan.h"

// glibc's own, below any symbol that a preloaded library may replace.
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

#define EXPORT __attribute__((visibility("default")))

static oom_plan_t plan;
static atomic_int armed;
static atomic_ullong requests;
static atomic_ullong refused;
static _Thread_local int is_inside;
static _Thread_local int is_library;  // once found to be one

EXPORT void oom_arm(const oom_plan_t* next) {
  atomic_store(&armed, 0);
  atomic_store(&requests, 0);
  atomic_store(&refused, 0);
  if (next == NULL) return;
  plan = *next;
  atomic_store(&armed, 1);
}

EXPORT void oom_enter(int inside) {
  is_inside = inside;
}

EXPORT uint64_t oom_requests(void) {
  return atomic_load(&requests);
}

EXPORT uint64_t oom_refusals(void) {
  return atomic_load(&refused);
}

// Threads of the library bear names that begin with "mep-".
static int is_library_thread(void) {
  char name[16] = "";
  if (is_library) return 1;
  if (is_inside || prctl(PR_GET_NAME, name) != 0) return 0;
  is_library = strncmp(name, "mep-", 4) == 0;
  return is_library;
}

static int refuses(uint32_t kind) {
  unsigned long long number;
  if (!atomic_load_explicit(&armed, memory_order_acquire)) return 0;
  if ((plan.kinds & kind) == 0) return 0;
  if (!((plan.threads & OOM_CALLERS) != 0 && is_inside) &&
      !((plan.threads & OOM_LIBRARY) != 0 && is_library_thread())) {
    return 0;
  }
  number = atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
  if (number < plan.first || number - plan.first >= plan.refusals) return 0;
  atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed);
  return 1;
}

static int refuses_with(uint32_t kind, int error) {
  if (!refuses(kind)) return 0;
  errno = error;
  return 1;
}

// --- Memory ---------------------------------------------------------------------------------------

EXPORT void* malloc(size_t bytes) {
  return refuses_with(OOM_MEMORY, ENOMEM) ? NULL : __libc_malloc(bytes);
}

EXPORT void* calloc(size_t count, size_t bytes) {
  return refuses_with(OOM_MEMORY, ENOMEM) ? NULL : __libc_calloc(count, bytes);
}

EXPORT void* realloc(void* old, size_t bytes) {
  return refuses_with(OOM_MEMORY, ENOMEM) ? NULL : __libc_realloc(old, bytes);
}

EXPORT void* memalign(size_t alignment, size_t bytes) {
  return refuses_with(OOM_MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, bytes);
}

EXPORT void* aligned_alloc(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}

EXPORT int posix_memalign(void** out, size_t alignment, size_t bytes) {
  void* memory = memalign(alignment, bytes);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}

// --- Descriptors, mappings, threads ---------------------------------------------------------------

#define NEXT(type, name, ...)                          \
  static type (*next_##name)(__VA_ARGS__);             \
  static void find_##name(void) {                      \
    if (next_##name != NULL) return;                   \
    *(void**)(&next_##name) = dlsym(RTLD_NEXT, #name); \
  }

NEXT(int, memfd_create, const char*, unsigned)
NEXT(int, socket, int, int, int)
NEXT(int, accept4, int, struct sockaddr*, socklen_t*, int)
NEXT(int, epoll_create1, int)
NEXT(int, epoll_ctl, int, int, int, struct epoll_event*)
NEXT(int, eventfd, unsigned, int)
NEXT(int, timerfd_create, int, int)
NEXT(int, dup, int)
NEXT(int, fcntl, int, int, ...)
NEXT(int, open, const char*, int, ...)
NEXT(ssize_t, sendmsg, int, const struct msghdr*, int)
NEXT(int, bind, int, const struct sockaddr*, socklen_t)
NEXT(int, ftruncate, int, off_t)
NEXT(void*, mmap, void*, size_t, int, int, int, off_t)
NEXT(int, pthread_create, pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)

// Before there is a second thread.
__attribute__((constructor)) static void find_all(void) {
  find_memfd_create();
  find_socket();
  find_accept4();
  find_epoll_create1();
  find_epoll_ctl();
  find_eventfd();
  find_timerfd_create();
  find_dup();
  find_fcntl();
  find_open();
  find_sendmsg();
  find_bind();
  find_ftruncate();
  find_mmap();
  find_pthread_create();
}

EXPORT int memfd_create(const char* name, unsigned flags) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_memfd_create(name, flags);
}

EXPORT int socket(int domain, int type, int protocol) {
  find_socket();
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_socket(domain, type, protocol);
}

// Like the kernel's: without a caller there is nothing to refuse.
EXPORT int accept4(int listener, struct sockaddr* address, socklen_t* length, int flags) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1
                                               : next_accept4(listener, address, length, flags);
}

EXPORT int epoll_create1(int flags) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_epoll_create1(flags);
}

EXPORT int epoll_ctl(int epoll, int operation, int fd, struct epoll_event* event) {
  if (operation == EPOLL_CTL_ADD && refuses_with(OOM_DESCRIPTORS, ENOSPC)) return -1;
  return next_epoll_ctl(epoll, operation, fd, event);
}

EXPORT int eventfd(unsigned value, int flags) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_eventfd(value, flags);
}

EXPORT int timerfd_create(int clock, int flags) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_timerfd_create(clock, flags);
}

EXPORT int dup(int fd) {
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_dup(fd);
}

static int any_fcntl(int fd, int command, void* argument) {
  const int makes_one = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  find_fcntl();
  if (makes_one && refuses_with(OOM_DESCRIPTORS, EMFILE)) return -1;
  return next_fcntl(fd, command, argument);
}

EXPORT int fcntl(int fd, int command, ...) {
  va_list arguments;
  void* argument;
  va_start(arguments, command);
  argument = va_arg(arguments, void*);
  va_end(arguments);
  return any_fcntl(fd, command, argument);
}

EXPORT int open(const char* path, int flags, ...) {
  va_list arguments;
  int mode;
  va_start(arguments, flags);
  mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  find_open();
  return refuses_with(OOM_DESCRIPTORS, EMFILE) ? -1 : next_open(path, flags, mode);
}

EXPORT ssize_t sendmsg(int socket, const struct msghdr* message, int flags) {
  find_sendmsg();
  return refuses_with(OOM_SENDING, ENOBUFS) ? -1 : next_sendmsg(socket, message, flags);
}

EXPORT int bind(int socket, const struct sockaddr* address, socklen_t length) {
  find_bind();
  if (address->sa_family != AF_UNIX && refuses_with(OOM_PORTS, EADDRINUSE)) return -1;
  return next_bind(socket, address, length);
}

EXPORT int ftruncate(int fd, off_t bytes) {
  return refuses_with(OOM_MAPPINGS, ENOSPC) ? -1 : next_ftruncate(fd, bytes);
}

EXPORT void* mmap(void* place, size_t bytes, int protection, int flags, int fd, off_t offset) {
  find_mmap();
  if (refuses_with(OOM_MAPPINGS, ENOMEM)) return MAP_FAILED;
  return next_mmap(place, bytes, protection, flags, fd, offset);
}

EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* argument) {
  if (refuses(OOM_THREADS)) return EAGAIN;
  return next_pthread_create(thread, attributes, run, argument);
}
