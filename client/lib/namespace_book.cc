#include "client/lib/namespace_book.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace penstock {
namespace {

constexpr size_t kMaxNamespacesOpen = 4096;
// A daemon that refused a namespace is asked again after so long, when it is wanted.
constexpr Duration kTryAgain = std::chrono::seconds(1);

}  // namespace

const Fingerprint& Namespace::fingerprint() const {
  static const Fingerprint none{};
  return data_ ? data_->fingerprint : none;
}

const NamespaceDescriptor& Namespace::descriptor() const {
  static const NamespaceDescriptor none{};
  return data_ ? data_->descriptor : none;
}

Namespace::Data::~Data() {
  if (const std::shared_ptr<NamespaceBook> alive = book.lock()) alive->Closed(fingerprint, number);
}

NamespaceBook::NamespaceBook(Tell tell) : pid_(getpid()), tell_(std::move(tell)) {}

Result<Namespace> NamespaceBook::Open(const NamespaceDescriptor& descriptor) {
  PENSTOCK_RETURN_IF_ERROR(descriptor.Validate());
  const Fingerprint fingerprint = descriptor.ComputeFingerprint();
  Namespace ns;
  MutexLock lock(mu_);
  const auto it = entries_.find(fingerprint);
  if (it != entries_.end()) {
    ns.data_ = it->second.handle.lock();
    if (ns.data_ != nullptr) return ns;
    // The last handle is on its way to Closed(), which will find another number.
  } else if (entries_.size() >= kMaxNamespacesOpen) {
    return Status(Code::kResourceExhausted,
                  fmt::format("{} namespaces are open in this client", kMaxNamespacesOpen));
  }
  Entry& entry = entries_[fingerprint];
  entry.number = next_number_++;
  entry.descriptor = descriptor.Encode();
  entry.tried = MonotonicNow();
  ns.data_ = std::make_shared<const Namespace::Data>(descriptor, fingerprint, entry.number,
                                                     weak_from_this());
  entry.handle = ns.data_;
  if (tell_) tell_(fingerprint, entry.descriptor);
  return ns;
}

bool NamespaceBook::IsOpen(const Fingerprint& ns) const {
  MutexLock lock(mu_);
  return entries_.contains(ns);
}

std::vector<std::pair<Fingerprint, std::vector<std::byte>>> NamespaceBook::List() const {
  std::vector<std::pair<Fingerprint, std::vector<std::byte>>> list;
  MutexLock lock(mu_);
  list.reserve(entries_.size());
  for (const auto& [fingerprint, entry] : entries_)
    list.emplace_back(fingerprint, entry.descriptor);
  return list;
}

void NamespaceBook::SetRefusal(Entry& entry, const Status& status) {
  if (!entry.refusal.ok()) refused_.fetch_sub(1, std::memory_order_relaxed);
  if (!status.ok()) refused_.fetch_add(1, std::memory_order_relaxed);
  entry.refusal = status;
}

void NamespaceBook::Answered(const Fingerprint& ns, const Status& status) {
  MutexLock lock(mu_);
  const auto it = entries_.find(ns);
  if (it != entries_.end()) SetRefusal(it->second, status);
}

Status NamespaceBook::Refusal(const Namespace& ns) {
  if (!AnyRefused()) return Status::Ok();
  MutexLock lock(mu_);
  const auto it = entries_.find(ns.fingerprint());
  if (it == entries_.end() || it->second.refusal.ok()) return Status::Ok();
  Entry& entry = it->second;
  const MonotonicTime now = MonotonicNow();
  if (now - entry.tried >= kTryAgain && tell_) {
    entry.tried = now;
    tell_(ns.fingerprint(), entry.descriptor);
  }
  return entry.refusal.Annotate("the daemon does not open the namespace");
}

void NamespaceBook::Closed(const Fingerprint& ns, uint64_t number) {
  if (getpid() != pid_) return;  // A forked child: the parent's threads may hold the lock.
  MutexLock lock(mu_);
  const auto it = entries_.find(ns);
  if (it == entries_.end() || it->second.number != number) return;
  SetRefusal(it->second, Status::Ok());
  if (tell_) tell_(ns, std::move(it->second.descriptor));
  entries_.erase(it);
}

void NamespaceBook::Detach() {
  MutexLock lock(mu_);
  tell_ = nullptr;
}

}  // namespace penstock
