// The JSON form of a namespace descriptor.

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "common/base/nearest.h"
#include "common/keys/namespace.h"
#include "common/keys/namespace_fields.h"

namespace penstock {
namespace {

using internal::Extension;
using internal::kNamespaceFields;
using internal::NamespaceField;
using Json = nlohmann::ordered_json;

constexpr std::string_view kHiddenSalt = "tenant_salt_digest";
constexpr std::string_view kSaltDomain{"penstock.salt.v1\0", 17};

Status Bad(std::string_view member, std::string_view what) {
  return Status(Code::kInvalidArgument, fmt::format("namespace member \"{}\": {}", member, what));
}

const NamespaceField* FieldNamed(std::string_view name) {
  for (const NamespaceField& field : kNamespaceFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Status Unknown(std::string_view name) {
  if (name == kHiddenSalt) return Bad(name, "the salt is hidden here, pass it as \"tenant_salt\"");
  std::vector<std::string_view> names;
  for (const NamespaceField& field : kNamespaceFields) names.push_back(field.name);
  const std::string_view nearest = Nearest(name, names);
  if (nearest.empty()) return Bad(name.substr(0, 64), "not known");
  return Bad(name, fmt::format("not known, did you mean \"{}\"?", nearest));
}

Status Assign(std::string_view member, const Json& json, std::string& text) {
  if (!json.is_string()) return Bad(member, "want a string");
  text = json.get<std::string>();
  return Status::Ok();
}

template <typename Number>
Status Assign(std::string_view member, const Json& json, Number& number) {
  constexpr Number kMax = std::numeric_limits<Number>::max();
  if (!json.is_number_unsigned() || json.get<uint64_t>() > kMax) {
    return Bad(member, fmt::format("want a whole number from 0 to {}", kMax));
  }
  number = json.get<Number>();
  return Status::Ok();
}

Status Assign(std::string_view member, const Json& json, Extension& extension) {
  if (!json.is_object()) return Bad(member, "want an object of strings");
  for (const auto& [name, value] : json.items()) {
    PENSTOCK_RETURN_IF_ERROR(Assign(member, value, extension[name]));
  }
  return Status::Ok();
}

// The parser keeps one of two equal members without a word, so they are looked for on the way.
class RepeatedMembers {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      seen_.resize(level + 1);
      seen_.push_back({});
    } else if (event == Json::parse_event_t::key && level < seen_.size()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!seen_[level].insert(name).second) found_ = name;
    }
    return true;
  }
  const std::string& found() const { return found_; }

 private:
  std::vector<std::set<std::string>> seen_;
  std::string found_;
};

}  // namespace

std::string NamespaceDescriptor::ToJson(Salt salt) const {
  Json json = Json::object();
  for (const NamespaceField& field : kNamespaceFields) {
    if (field.name == "tenant_salt" && salt == Salt::kHide) {
      if (tenant_salt.empty()) continue;
      const Digest256 digest = Digest256::Sha256({AsBytes(kSaltDomain), AsBytes(tenant_salt)});
      json[std::string(kHiddenSalt)] = digest.ToShortHex();
      continue;
    }
    std::visit([&](auto member) { json[std::string(field.name)] = this->*member; }, field.member);
  }
  // Invalid UTF-8 can only be in a descriptor that Validate() rejects; show it rather than throw.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<NamespaceDescriptor> NamespaceDescriptor::FromJson(std::string_view json) {
  if (json.size() > 8 * kMaxEncodedBytes) {  // Escapes may take six bytes for one.
    return Status(Code::kInvalidArgument, "namespace: JSON too long");
  }
  RepeatedMembers repeated;
  const Json parsed =
      Json::parse(json, std::ref(repeated), /*allow_exceptions=*/false, /*ignore_comments=*/false);
  if (!parsed.is_object()) {
    return Status(Code::kInvalidArgument, "namespace: want a JSON object");
  }
  if (!repeated.found().empty()) return Bad(repeated.found().substr(0, 64), "given twice");
  NamespaceDescriptor ns;
  for (const auto& [name, value] : parsed.items()) {
    const NamespaceField* field = FieldNamed(name);
    if (field == nullptr) return Unknown(name);
    PENSTOCK_RETURN_IF_ERROR(std::visit(
        [&, &json_value = value](auto member) {
          return Assign(field->name, json_value, ns.*member);
        },
        field->member));
  }
  PENSTOCK_RETURN_IF_ERROR(ns.Validate().Annotate("namespace"));
  return ns;
}

}  // namespace penstock
