// Preloaded into a server: its wall clock is the number of microseconds in the file that
// TENURE_TEST_CLOCK names. The test writes the file, the server has it mapped, so a read costs no
// system call. The monotonic clocks stay real: the server's event loop runs as usual.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *micros;

__attribute__((constructor)) static void map_clock(void) {
  const char *path = getenv("TENURE_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *micros, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) micros = page;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  if (!micros) return (int)syscall(SYS_gettimeofday, now, zone);
  uint64_t read = *micros;
  now->tv_sec = (time_t)(read / 1000000);
  now->tv_usec = (suseconds_t)(read % 1000000);
  return 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if (!micros || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) {
    return (int)syscall(SYS_clock_gettime, id, now);
  }
  uint64_t read = *micros;
  now->tv_sec = (time_t)(read / 1000000);
  now->tv_nsec = (long)(read % 1000000) * 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec read;
  clock_gettime(CLOCK_REALTIME, &read);
  if (now) *now = read.tv_sec;
  return read.tv_sec;
}
