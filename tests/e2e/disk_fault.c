/* A disk that is full, that hangs, or whose flush fails, for one directory of one program: loaded with LD_PRELOAD by
 * tests/e2e/disk_faults.rs and disk_hangs.rs. The first byte of the file DISK_FAULT_FILE selects the fault below DISK_FAULT_DIR:
 *   f  full: a write takes half of what it is given, the next ENOSPC, and so on; and no space can be allocated
 *   s  fsync and fdatasync fail with EIO, as after a device error; the kernel keeps the pages
 *   h  hangs: writes and flushes return when the fault ends
 * Anything else: no fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char fault(int fd) {
  const char *file = getenv("DISK_FAULT_FILE"), *dir = getenv("DISK_FAULT_DIR");
  if (!file || !dir) return 0;
  int saved = errno, control = open(file, O_RDONLY | O_CLOEXEC);
  char what = 0, link[64], path[4096];
  if (control >= 0) {
    if (read(control, &what, 1) != 1) what = 0;
    close(control);
  }
  if (what) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) n = 0;
    path[n] = 0;
    if (strncmp(path, dir, strlen(dir)) != 0) what = 0;
  }
  errno = saved;
  return what;
}

static void hang(int fd) {
  while (fault(fd) == 'h') usleep(10000);
}

static __thread int turn;

/* Bytes that still fit, or -1. */
static ssize_t room(int fd, size_t count) {
  hang(fd);
  if (fault(fd) != 'f') return (ssize_t)count;
  turn = !turn;
  if (turn && count > 1) return (ssize_t)(count / 2);
  errno = ENOSPC;
  return -1;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t count) {
  REAL(write);
  ssize_t n = room(fd, count);
  return n < 0 ? -1 : real(fd, bytes, (size_t)n);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  REAL(pwrite);
  ssize_t n = room(fd, count);
  return n < 0 ? -1 : real(fd, bytes, (size_t)n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  REAL(pwrite64);
  ssize_t n = room(fd, count);
  return n < 0 ? -1 : real(fd, bytes, (size_t)n, at);
}

int posix_fallocate64(int fd, off64_t at, off64_t count) {
  REAL(posix_fallocate64);
  return fault(fd) == 'f' ? ENOSPC : real(fd, at, count);
}

int fallocate64(int fd, int mode, off64_t at, off64_t count) {
  REAL(fallocate64);
  if (fault(fd) != 'f') return real(fd, mode, at, count);
  errno = ENOSPC;
  return -1;
}

int fsync(int fd) {
  REAL(fsync);
  hang(fd);
  if (fault(fd) != 's') return real(fd);
  errno = EIO;
  return -1;
}

int fdatasync(int fd) {
  REAL(fdatasync);
  hang(fd);
  if (fault(fd) != 's') return real(fd);
  errno = EIO;
  return -1;
}
