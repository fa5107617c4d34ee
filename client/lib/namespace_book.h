// NamespaceBook: the namespaces of a client that somebody has a handle of, and what the daemon said
// about each. When the last handle of one is gone, so is its entry, and the daemon is told.
//
// Thread safety: every method may be called from any thread. Handles may outlive the client.

#ifndef PENSTOCK_CLIENT_LIB_NAMESPACE_BOOK_H_
#define PENSTOCK_CLIENT_LIB_NAMESPACE_BOOK_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "client/lib/client.h"
#include "common/base/mutex.h"

namespace penstock {

// What the copies of a namespace handle share.
struct Namespace::Data {
  Data(const NamespaceDescriptor& of, const Fingerprint& print, uint64_t entry,
       std::weak_ptr<NamespaceBook> in)
      : descriptor(of), fingerprint(print), number(entry), book(std::move(in)) {}
  ~Data();
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;

  const NamespaceDescriptor descriptor;
  const Fingerprint fingerprint;
  const uint64_t number;  // Of the book's entry.
  const std::weak_ptr<NamespaceBook> book;
};

class NamespaceBook : public std::enable_shared_from_this<NamespaceBook> {
 public:
  // The daemon is to be told whether the namespace is open: see IsOpen(), at the time of the
  // telling, for messages may be made in another order than the book changed. Must not block.
  using Tell = std::function<void(const Fingerprint& ns, std::vector<std::byte> descriptor)>;

  explicit NamespaceBook(Tell tell);

  // Errors: kInvalidArgument, kResourceExhausted (too many in this client).
  Result<Namespace> Open(const NamespaceDescriptor& descriptor);
  bool IsOpen(const Fingerprint& ns) const;
  // Of all that are open: fingerprint and encoded descriptor.
  std::vector<std::pair<Fingerprint, std::vector<std::byte>>> List() const;

  // What the daemon answered to the opening of `ns`.
  void Answered(const Fingerprint& ns, const Status& status);
  // kOk, or why the daemon would not open it. Such a namespace is tried again now and then.
  Status Refusal(const Namespace& ns);
  bool AnyRefused() const { return refused_.load(std::memory_order_relaxed) > 0; }

  // The client is going: nothing is told any more.
  void Detach();

 private:
  friend struct Namespace::Data;
  struct Entry {
    uint64_t number = 0;
    std::vector<std::byte> descriptor;
    std::weak_ptr<const Namespace::Data> handle;
    Status refusal;
    MonotonicTime tried;
  };

  void Closed(const Fingerprint& ns, uint64_t number);
  void SetRefusal(Entry& entry, const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const pid_t pid_;
  std::atomic<uint32_t> refused_ = 0;  // Entries with a refusal; written under mu_.
  mutable Mutex mu_;
  Tell tell_ ABSL_GUARDED_BY(mu_);
  std::map<Fingerprint, Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_NAMESPACE_BOOK_H_
