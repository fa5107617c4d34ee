// STORE_CHECK: for programmer errors only, and never compiled out: a store with a broken invariant
// must stop before it serves one user's cache to another.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_CHECK_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_CHECK_H_

#include "common/log/log.h"

#define STORE_CHECK(cond)                                                  \
  do {                                                                     \
    if (!(cond)) ::penstock::LogFatal("CHECK " #cond, __FILE__, __LINE__); \
  } while (false)

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_CHECK_H_
