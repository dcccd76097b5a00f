/* A PKCS#11 module of the tests: forwards everything to a real one, and fails or hangs on command.
 * RON_SHIM_REAL names the real module, RON_SHIM_CONTROL a file that holds one word:
 *   ok         forward
 *   fail       every call that touches the token answers CKR_DEVICE_REMOVED
 *   lost       as `fail`, but with CKR_SESSION_HANDLE_INVALID where a session is named
 *   hang       C_Sign does not come back while the file says so
 *   hang-once  as `hang`, for the first caller since another word stood there
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long CK_RV;
typedef CK_RV (*any_fn)(void);
struct function_list {
  unsigned char version[2];
  any_fn f[68];
};

/* Places in the function list, as PKCS#11 2.40 orders it. */
enum {
  GET_SLOT_LIST = 4, GET_TOKEN_INFO = 6, OPEN_SESSION = 12, GET_SESSION_INFO = 15, LOGIN = 18,
  FIND_INIT = 26, SIGN_INIT = 42, SIGN = 43, GENERATE_PAIR = 59, RANDOM = 64
};
enum { DEVICE_REMOVED = 0x32, SESSION_INVALID = 0xB3 };

static struct function_list ours;
static struct function_list *real;
static atomic_int hung_once;

static int says(const char *word) {
  char text[32] = {0};
  FILE *file = fopen(getenv("RON_SHIM_CONTROL"), "r");
  if (!file) return 0;
  size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  while (n && (text[n - 1] == '\n' || text[n - 1] == ' ')) text[--n] = 0;
  return strcmp(text, word) == 0;
}

typedef CK_RV (*six)(unsigned long, unsigned long, unsigned long, unsigned long, unsigned long,
                     unsigned long, unsigned long, unsigned long);

/* All arguments of these calls are words, so eight words are passed on whatever the call takes. */
#define GUARD(name, place, has_session)                                                          \
  static CK_RV name(unsigned long a, unsigned long b, unsigned long c, unsigned long d,           \
                    unsigned long e, unsigned long f, unsigned long g, unsigned long h) {         \
    if (says("fail")) return DEVICE_REMOVED;                                                      \
    if (says("lost")) return (has_session) ? SESSION_INVALID : DEVICE_REMOVED;                    \
    if ((place) == SIGN) {                                                                        \
      if (!says("hang-once")) atomic_store(&hung_once, 0);                                        \
      int mine = says("hang-once") && !atomic_exchange(&hung_once, 1);                            \
      while ((mine && says("hang-once")) || says("hang")) usleep(5000);                           \
    }                                                                                             \
    return ((six)real->f[place])(a, b, c, d, e, f, g, h);                                         \
  }

GUARD(get_slot_list, GET_SLOT_LIST, 0)
GUARD(get_token_info, GET_TOKEN_INFO, 0)
GUARD(open_session, OPEN_SESSION, 0)
GUARD(get_session_info, GET_SESSION_INFO, 1)
GUARD(login, LOGIN, 1)
GUARD(find_init, FIND_INIT, 1)
GUARD(sign_init, SIGN_INIT, 1)
GUARD(sign, SIGN, 1)
GUARD(generate_pair, GENERATE_PAIR, 1)
GUARD(get_random, RANDOM, 1)

CK_RV C_GetFunctionList(struct function_list **out) {
  if (!real) {
    void *module = dlopen(getenv("RON_SHIM_REAL"), RTLD_NOW | RTLD_LOCAL);
    if (!module) return 5;
    CK_RV (*get)(struct function_list **) =
        (CK_RV (*)(struct function_list **))dlsym(module, "C_GetFunctionList");
    if (!get || get(&real)) return 5;
    ours = *real;
    ours.f[GET_SLOT_LIST] = (any_fn)get_slot_list;
    ours.f[GET_TOKEN_INFO] = (any_fn)get_token_info;
    ours.f[OPEN_SESSION] = (any_fn)open_session;
    ours.f[GET_SESSION_INFO] = (any_fn)get_session_info;
    ours.f[LOGIN] = (any_fn)login;
    ours.f[FIND_INIT] = (any_fn)find_init;
    ours.f[SIGN_INIT] = (any_fn)sign_init;
    ours.f[SIGN] = (any_fn)sign;
    ours.f[GENERATE_PAIR] = (any_fn)generate_pair;
    ours.f[RANDOM] = (any_fn)get_random;
    ours.f[3] = (any_fn)C_GetFunctionList;
  }
  *out = &ours;
  return 0;
}
