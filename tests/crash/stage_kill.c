/* Ends a program with SIGKILL before the n-th operation of one of its stages: loaded with LD_PRELOAD by
 * tests/crash/stages/mod.rs. A stage is a thread whose name begins with a given text; an operation is a call that reads or
 * changes a file or a socket. The file STAGE_KILL_FILE is mapped: eight times the begin of a name (16 bytes, padded
 * with NUL) and how many operations are left (8 bytes). The thread that counts one down to zero ends the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define SLOTS 8
struct slot {
  char stage[16];
  long long left;
};
static struct slot *slots;

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("STAGE_KILL_FILE");
  int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *at = mmap(NULL, SLOTS * sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) slots = at;
  close(fd);
}

static void operation(void) {
  char name[16] = {0};
  if (!slots || prctl(PR_GET_NAME, name) != 0 || strncmp(name, "rew-", 4) != 0) return;
  for (int i = 0; i < SLOTS; i++) {
    size_t length = strnlen(slots[i].stage, sizeof slots[i].stage);
    if (!length || strncmp(name, slots[i].stage, length) != 0) continue;
    if (__atomic_load_n(&slots[i].left, __ATOMIC_SEQ_CST) <= 0) continue;
    if (__atomic_sub_fetch(&slots[i].left, 1, __ATOMIC_SEQ_CST) != 0) continue;
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
  operation()

ssize_t read(int fd, void *into, size_t n) { REAL(read); return real(fd, into, n); }
ssize_t write(int fd, const void *from, size_t n) { REAL(write); return real(fd, from, n); }
ssize_t recv(int fd, void *into, size_t n, int how) { REAL(recv); return real(fd, into, n, how); }
ssize_t send(int fd, const void *from, size_t n, int how) { REAL(send); return real(fd, from, n, how); }
ssize_t pread64(int fd, void *into, size_t n, off64_t at) { REAL(pread64); return real(fd, into, n, at); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { REAL(pwrite64); return real(fd, from, n, at); }
int fsync(int fd) { REAL(fsync); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return real(fd); }
int rename(const char *from, const char *to) { REAL(rename); return real(from, to); }
int link(const char *from, const char *to) { REAL(link); return real(from, to); }
int linkat(int a, const char *from, int b, const char *to, int how) { REAL(linkat); return real(a, from, b, to, how); }
int unlink(const char *path) { REAL(unlink); return real(path); }
int unlinkat(int at, const char *path, int how) { REAL(unlinkat); return real(at, path, how); }
int rmdir(const char *path) { REAL(rmdir); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return real(path, mode); }

int open64(const char *path, int how, ...) {
  va_list more;
  va_start(more, how);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  REAL(open64);
  return real(path, how, mode);
}
