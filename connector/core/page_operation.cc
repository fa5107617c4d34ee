#include "connector/core/page_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace penstock {

std::byte* PageScratch::Add(uint64_t bytes) {
  parts_.emplace_back(new (std::nothrow) std::byte[bytes]);
  return parts_.back().get();
}

PageOperation::PageOperation(std::vector<ItemResult> items, std::vector<uint64_t> expected_bytes,
                             PageScratch scratch)
    : expected_bytes_(std::move(expected_bytes)),
      scratch_(std::move(scratch)),
      items_(std::move(items)) {}

void PageOperation::AddPart(OperationPtr operation, std::vector<uint32_t> chunks) {
  parts_.push_back({std::move(operation), std::move(chunks)});
}

bool PageOperation::Done() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.operation->Done(); });
}

bool PageOperation::Wait(const Deadline& deadline) {
  return std::all_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.operation->Wait(deadline); });
}

void PageOperation::Cancel() {
  for (const Part& part : parts_) part.operation->Cancel();
}

Status PageOperation::status() const {
  for (const Part& part : parts_) {
    if (Status status = part.operation->status(); !status.ok()) return status;
  }
  return Status::Ok();
}

const std::vector<ItemResult>& PageOperation::items() const {
  MutexLock lock(mu_);
  if (!merged_) MergeLocked();
  return items_;
}

void PageOperation::MergeLocked() const {
  for (const Part& part : parts_) {
    const std::vector<ItemResult>& results = part.operation->items();
    for (size_t i = 0; i < part.chunks.size(); ++i) {
      const uint32_t chunk = part.chunks[i];
      ItemResult& item = items_[chunk];
      if (i < results.size()) {
        item = results[i];
      } else {
        item.status = part.operation->status();
      }
      if (item.status.ok() && item.bytes != expected_bytes_[chunk]) {
        item.status =
            Status(Code::kFormatMismatch, fmt::format("the chunk has {} bytes, its pages {}",
                                                      item.bytes, expected_bytes_[chunk]));
      }
    }
  }
  merged_ = true;
}

const MatchOutcome& PageOperation::match() const {
  static const MatchOutcome kNone;
  return kNone;
}

const StatReply& PageOperation::stat() const {
  static const StatReply kNone;
  return kNone;
}

}  // namespace penstock
