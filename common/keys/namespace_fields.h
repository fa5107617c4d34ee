// The one table of a namespace descriptor's fields: encoding, JSON and validation all walk it.
// Internal to common/keys and its tests.

#ifndef PENSTOCK_COMMON_KEYS_NAMESPACE_FIELDS_H_
#define PENSTOCK_COMMON_KEYS_NAMESPACE_FIELDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "common/keys/namespace.h"

namespace penstock::internal {

using Extension = std::map<std::string, std::string>;

struct NamespaceField {
  uint16_t tag;  // In the encoding. Ascending in the table, never used again.
  std::string_view name;
  std::variant<std::string NamespaceDescriptor::*, uint32_t NamespaceDescriptor::*,
               uint64_t NamespaceDescriptor::*, Extension NamespaceDescriptor::*>
      member;
};

inline constexpr NamespaceField kNamespaceFields[] = {
    {1, "tenant", &NamespaceDescriptor::tenant},
    {2, "tenant_salt", &NamespaceDescriptor::tenant_salt},
    {3, "model", &NamespaceDescriptor::model},
    {4, "model_revision", &NamespaceDescriptor::model_revision},
    {5, "kv_dtype", &NamespaceDescriptor::kv_dtype},
    {6, "kv_scale_mode", &NamespaceDescriptor::kv_scale_mode},
    {7, "layout", &NamespaceDescriptor::layout},
    {8, "block_tokens", &NamespaceDescriptor::block_tokens},
    {9, "chunk_tokens", &NamespaceDescriptor::chunk_tokens},
    {10, "tp_rank", &NamespaceDescriptor::tp_rank},
    {11, "tp_size", &NamespaceDescriptor::tp_size},
    {12, "pp_rank", &NamespaceDescriptor::pp_rank},
    {13, "pp_size", &NamespaceDescriptor::pp_size},
    {14, "dcp_rank", &NamespaceDescriptor::dcp_rank},
    {15, "dcp_size", &NamespaceDescriptor::dcp_size},
    {16, "group", &NamespaceDescriptor::group},
    {17, "group_kind", &NamespaceDescriptor::group_kind},
    {18, "adapter", &NamespaceDescriptor::adapter},
    {19, "adapter_generation", &NamespaceDescriptor::adapter_generation},
    {20, "extension", &NamespaceDescriptor::extension},
};

}  // namespace penstock::internal

#endif  // PENSTOCK_COMMON_KEYS_NAMESPACE_FIELDS_H_
