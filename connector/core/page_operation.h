// PageOperation: the Operation that a PageStore returns. It joins the client's operations that a
// load or store was split into, and the chunks that never reached the client, into one list of
// results in the caller's order.
//
// Thread safety: as Operation, once every part was added.

#ifndef PENSTOCK_CONNECTOR_CORE_PAGE_OPERATION_H_
#define PENSTOCK_CONNECTOR_CORE_PAGE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/lib/client.h"
#include "common/base/mutex.h"

namespace penstock {

// Memory for bytes that nobody wants. Move-only.
class PageScratch {
 public:
  // Null when there is no memory.
  std::byte* Add(uint64_t bytes);

 private:
  std::vector<std::unique_ptr<std::byte[]>> parts_;
};

class PageOperation final : public Operation {
 public:
  // `items` holds the results of the chunks that are settled already. Of every other chunk, the
  // result is that of its part, and kFormatMismatch when it is kOk with other than
  // `expected_bytes` (of the chunk) bytes. `scratch` is kept until nothing writes to it.
  PageOperation(std::vector<ItemResult> items, std::vector<uint64_t> expected_bytes,
                PageScratch scratch);

  // Item i of `operation` is chunk chunks[i]. Not thread-safe: before the operation is shared.
  void AddPart(OperationPtr operation, std::vector<uint32_t> chunks);

  bool Done() const override;
  bool Wait(const Deadline& deadline) override;
  void Cancel() override;
  Status status() const override;
  const std::vector<ItemResult>& items() const override ABSL_LOCKS_EXCLUDED(mu_);
  const MatchOutcome& match() const override;  // Empty.
  const StatReply& stat() const override;      // Empty.

 private:
  struct Part {
    OperationPtr operation;
    std::vector<uint32_t> chunks;
  };

  void MergeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<uint64_t> expected_bytes_;
  const PageScratch scratch_;  // Before parts_, so destroyed after them.
  std::vector<Part> parts_;

  mutable Mutex mu_;
  mutable bool merged_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::vector<ItemResult> items_ ABSL_GUARDED_BY(mu_);  // Fixed once merged_.
};

}  // namespace penstock

#endif  // PENSTOCK_CONNECTOR_CORE_PAGE_OPERATION_H_
