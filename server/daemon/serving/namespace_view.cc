#include "server/daemon/serving/namespace_view.h"

#include "common/keys/namespace.h"
#include "fmt/format.h"

namespace penstock {

Status NamespaceView::Open(ByteSpan bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const NamespaceDescriptor descriptor,
                            NamespaceDescriptor::Decode(bytes));
  PENSTOCK_RETURN_IF_ERROR(descriptor.Validate());
  if (descriptor.tenant != tenant_) {
    return Status(Code::kPermissionDenied,
                  fmt::format("this session belongs to tenant '{}', the namespace to '{}'", tenant_,
                              descriptor.tenant));
  }
  const Fingerprint fingerprint = descriptor.ComputeFingerprint();
  PENSTOCK_ASSIGN_OR_RETURN(const NamespaceId id, store_.OpenNamespace(fingerprint, bytes));
  known_.insert_or_assign(fingerprint, id);
  return Status::Ok();
}

NamespaceId NamespaceView::Find(const Fingerprint& fingerprint) {
  if (const auto it = known_.find(fingerprint); it != known_.end()) return it->second;
  const NamespaceId id = store_.FindNamespace(fingerprint);
  if (id == NamespaceId::kNone) return id;
  const auto info = store_.GetNamespace(id);
  if (!info) return NamespaceId::kNone;
  const auto descriptor = NamespaceDescriptor::Decode(info->descriptor);
  const bool ours = descriptor.ok() && descriptor->tenant == tenant_;
  const NamespaceId seen = ours ? id : NamespaceId::kNone;
  known_.emplace(fingerprint, seen);
  return seen;
}

}  // namespace penstock
