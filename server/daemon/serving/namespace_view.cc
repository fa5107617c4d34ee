#include "server/daemon/serving/namespace_view.h"

#include "common/keys/namespace.h"
#include "fmt/format.h"

namespace penstock {

Result<Fingerprint> NamespaceView::Judge(ByteSpan bytes) const {
  PENSTOCK_ASSIGN_OR_RETURN(const NamespaceDescriptor descriptor,
                            NamespaceDescriptor::Decode(bytes));
  PENSTOCK_RETURN_IF_ERROR(descriptor.Validate());
  if (descriptor.tenant != tenant_) {
    return Status(Code::kPermissionDenied,
                  fmt::format("the session belongs to tenant '{}', the namespace to '{}'", tenant_,
                              descriptor.tenant));
  }
  return descriptor.ComputeFingerprint();
}

Status NamespaceView::Open(ByteSpan bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const Fingerprint fingerprint, Judge(bytes));
  PENSTOCK_ASSIGN_OR_RETURN(HeldNamespace held, store_.HoldNamespace(fingerprint, bytes));
  open_.insert_or_assign(fingerprint, std::move(held));
  return Status::Ok();
}

Status NamespaceView::Close(ByteSpan bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const Fingerprint fingerprint, Judge(bytes));
  open_.erase(fingerprint);
  return Status::Ok();
}

NamespaceId NamespaceView::Find(const Fingerprint& fingerprint) {
  if (const auto it = open_.find(fingerprint); it != open_.end()) return it->second.id;
  const NamespaceId id = store_.FindNamespace(fingerprint);
  if (id == NamespaceId::kNone) return id;
  const auto info = store_.GetNamespace(id);
  if (!info) return NamespaceId::kNone;
  const auto descriptor = NamespaceDescriptor::Decode(info->descriptor);
  const bool ours = descriptor.ok() && descriptor->tenant == tenant_;
  return ours ? id : NamespaceId::kNone;
}

}  // namespace penstock
