// Arena: the memory that holds the payload of every chunk of a tier, in one memfd.
//
// The descriptor is sealed: it can neither shrink nor grow, and nobody who receives it can map it
// writable. The mapping is left out of core dumps.
//
// Thread safety: immutable after Create().

#ifndef PENSTOCK_SERVER_DAEMON_STORE_ARENA_H_
#define PENSTOCK_SERVER_DAEMON_STORE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "server/daemon/store/store_options.h"

namespace penstock {

class Arena {
 public:
  // Errors: kInvalidArgument (no size, or one that overflows), kResourceExhausted with the name of
  // the limit, what was wanted and what is allowed. Never returns memory that is not there: with
  // prefault or lock every page exists when this returns.
  static Result<std::unique_ptr<Arena>> Create(const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  // A whole number of pages, at least what was asked for.
  uint64_t size() const { return size_; }
  MutableByteSpan span() const { return {base_, size_}; }
  // The memfd, which others can read and never write; -1 where the kernel cannot seal it like that.
  int readable_fd() const { return sealed_ ? fd_ : -1; }
  uint64_t page_bytes() const { return page_bytes_; }
  bool locked() const { return locked_; }

 private:
  Arena() = default;
  Status OpenFile(const ArenaOptions& options);
  Status Map(const ArenaOptions& options);
  Status Populate(const ArenaOptions& options);

  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t page_bytes_ = 0;
  int fd_ = -1;
  bool locked_ = false;
  bool sealed_ = false;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_ARENA_H_
