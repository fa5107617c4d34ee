#include "common/keys/namespace.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "common/keys/namespace_fields.h"
#include "tests/unit/golden/golden.h"

namespace penstock {
namespace {

using ::penstock::testing::FromHex;
using ::penstock::testing::ReadGolden;

NamespaceDescriptor Full() {
  return *NamespaceDescriptor::FromJson(ReadGolden("namespaces.json")[2]["descriptor"].dump());
}

// Another value of one field, whatever its type.
void Change(std::string& text) { text += "x"; }
void Change(uint32_t& number) { number ^= 0x100; }
void Change(uint64_t& number) { number ^= 0x100; }
void Change(std::map<std::string, std::string>& extension) { extension["new"] = ""; }

TEST(Namespace, EncodingAndFingerprintAreTheGoldenOnes) {
  const auto golden = ReadGolden("namespaces.json");
  ASSERT_GE(golden.size(), 6u);
  for (const auto& entry : golden) {
    const auto ns = NamespaceDescriptor::FromJson(entry["descriptor"].dump());
    ASSERT_TRUE(ns.ok()) << ns.status().ToString();
    EXPECT_EQ(ns->Encode(), FromHex(entry["encoding"]));
    EXPECT_EQ(ns->ComputeFingerprint().ToHex(), entry["fingerprint"].get<std::string>());
    const auto back = NamespaceDescriptor::Decode(ns->Encode());
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, *ns);
  }
}

TEST(Namespace, EveryFieldChangesTheFingerprint) {
  for (const NamespaceDescriptor& base : {NamespaceDescriptor(), Full()}) {
    std::set<std::string> fingerprints = {base.ComputeFingerprint().ToHex()};
    for (const internal::NamespaceField& field : internal::kNamespaceFields) {
      NamespaceDescriptor changed = base;
      std::visit([&](auto member) { Change(changed.*member); }, field.member);
      ASSERT_NE(changed, base) << field.name;
      EXPECT_TRUE(fingerprints.insert(changed.ComputeFingerprint().ToHex()).second) << field.name;
    }
    EXPECT_EQ(fingerprints.size(), std::size(internal::kNamespaceFields) + 1);
  }
}

// A field that is in the struct but not in the table would not be in the key. This does not compile
// when a field is added to the struct; then the table must have it too.
TEST(Namespace, TheTableHasEveryFieldOfTheStruct) {
  const NamespaceDescriptor ns;
  const auto& [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
               f20] = ns;
  const void* fields[] = {&f1,  &f2,  &f3,  &f4,  &f5,  &f6,  &f7,  &f8,  &f9,  &f10,
                          &f11, &f12, &f13, &f14, &f15, &f16, &f17, &f18, &f19, &f20};
  ASSERT_EQ(std::size(fields), std::size(internal::kNamespaceFields));
  uint16_t last_tag = 0;
  for (size_t i = 0; i < std::size(fields); ++i) {
    const internal::NamespaceField& field = internal::kNamespaceFields[i];
    const void* member =
        std::visit([&](auto m) { return static_cast<const void*>(&(ns.*m)); }, field.member);
    EXPECT_EQ(member, fields[i]) << field.name;
    EXPECT_GT(field.tag, last_tag) << field.name;
    last_tag = field.tag;
  }
}

TEST(Namespace, ExtensionEntriesCannotBeConfused) {
  NamespaceDescriptor a, b, c;
  a.extension = {{"ab", "c"}};
  b.extension = {{"a", "bc"}};
  c.extension = {{"a", "b"}, {"c", ""}};
  EXPECT_NE(a.Encode(), b.Encode());
  EXPECT_NE(a.Encode(), c.Encode());
  EXPECT_NE(b.Encode(), c.Encode());
}

TEST(Namespace, DecodeRejectsEveryCutAndEveryTail) {
  std::vector<std::byte> bytes = Full().Encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto ns = NamespaceDescriptor::Decode(ByteSpan(bytes).first(size));
    // A cut between two fields is the encoding of another descriptor, never of this one.
    if (ns.ok()) {
      EXPECT_EQ(ns->Encode().size(), size);
    }
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(NamespaceDescriptor::Decode(bytes).status().code(), Code::kCorruptMessage);
}

TEST(Namespace, WhatDecodeAcceptsIsWhatEncodeWrites) {
  std::mt19937_64 rng(1);
  const std::vector<std::byte> good = Full().Encode();
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (size_t n = 1 + rng() % 3; n > 0; --n) {
      bytes[rng() % bytes.size()] = static_cast<std::byte>(rng());
    }
    const auto ns = NamespaceDescriptor::Decode(bytes);
    if (!ns.ok()) continue;
    ++accepted;
    ASSERT_EQ(ns->Encode(), bytes);
    ASSERT_TRUE(ns->Validate().ok());
  }
  EXPECT_GT(accepted, 100);
}

// Head and fields by hand.
std::vector<std::byte> Encoding(uint16_t version, std::vector<std::pair<uint16_t, std::string>> f) {
  ByteWriter out;
  out.Append(AsBytes("PSKN")).U16(version);
  for (const auto& [tag, value] : f) {
    out.U16(tag).U32(static_cast<uint32_t>(value.size())).Append(AsBytes(value));
  }
  return out.Release();
}

TEST(Namespace, DecodeRejectsWhatIsNotCanonical) {
  const std::string one("\1\0\0\0", 4), zero("\0\0\0\0", 4), two("\2\0\0\0", 4);
  const auto code = [](const std::vector<std::byte>& bytes) {
    return NamespaceDescriptor::Decode(bytes).status().code();
  };
  EXPECT_EQ(code(Encoding(1, {})), Code::kOk);
  EXPECT_EQ(code(Encoding(1, {{1, "t"}, {3, "m"}})), Code::kOk);
  EXPECT_EQ(code(Encoding(1, {{3, "m"}, {1, "t"}})), Code::kCorruptMessage);  // Order.
  EXPECT_EQ(code(Encoding(1, {{1, "t"}, {1, "t"}})), Code::kCorruptMessage);  // Twice.
  EXPECT_EQ(code(Encoding(1, {{1, ""}})), Code::kCorruptMessage);             // Default.
  EXPECT_EQ(code(Encoding(1, {{11, one}})), Code::kCorruptMessage);           // Default.
  EXPECT_EQ(code(Encoding(1, {{16, zero}})), Code::kCorruptMessage);          // Default.
  EXPECT_EQ(code(Encoding(1, {{11, two}})), Code::kOk);
  EXPECT_EQ(code(Encoding(1, {{11, two + "x"}})), Code::kCorruptMessage);  // Size.
  EXPECT_EQ(code(Encoding(1, {{11, "\2"}})), Code::kCorruptMessage);       // Size.
  EXPECT_EQ(code(Encoding(1, {{20, one + "b" + zero}})), Code::kOk);
  EXPECT_EQ(code(Encoding(1, {{20, one + "b" + zero + one + "a" + zero}})), Code::kCorruptMessage);
  EXPECT_EQ(code(Encoding(1, {{20, one + "b" + zero + one + "b" + zero}})), Code::kCorruptMessage);
  EXPECT_EQ(code(Encoding(1, {{20, zero + zero}})), Code::kInvalidArgument);  // No name.
  EXPECT_EQ(code(Encoding(1, {{21, "later"}})), Code::kVersionSkew);
  EXPECT_EQ(code(Encoding(2, {})), Code::kVersionSkew);
  EXPECT_EQ(code(Encoding(1, {{3, std::string(1025, 'x')}})), Code::kInvalidArgument);
  EXPECT_EQ(code(Encoding(1, {{3, std::string(200'000, 'x')}})), Code::kCorruptMessage);
}

TEST(Namespace, ValidateNamesTheField) {
  const auto complaint = [](auto change) {
    NamespaceDescriptor ns = Full();
    change(ns);
    const Status s = ns.Validate();
    EXPECT_EQ(NamespaceDescriptor::Decode(ns.Encode()).ok(), s.ok());
    return s.ok() ? "" : s.message();
  };
  using Ns = NamespaceDescriptor;
  EXPECT_EQ(complaint([](Ns&) {}), "");
  EXPECT_EQ(complaint([](Ns& n) { n.block_tokens = n.chunk_tokens = 0; }), "");
  EXPECT_EQ(complaint([](Ns& n) { n.model = "caf\xC3\xA9 \xE2\x98\x83 \xF0\x9F\x90\x8B"; }), "");
  EXPECT_NE(complaint([](Ns& n) { n.tp_size = 0; }).find("tp_size"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.pp_rank = n.pp_size; }).find("pp_rank"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.dcp_rank = 9; }).find("dcp_rank 9"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.chunk_tokens = 250; }).find("chunk_tokens"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.chunk_tokens = 0; }).find("chunk_tokens"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.block_tokens = 0; }).find("chunk_tokens"), std::string::npos);
  EXPECT_NE(complaint([](Ns& n) { n.layout.assign(1025, 'a'); }).find("layout"), std::string::npos);
  for (const char* bad : {"\x80", "a\xC3", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF5\x80",
                          "\xF4\x90\x80\x80", "a\nb", "\x7F", "\xC2\x85", "\xF0\x80\x80\x80"}) {
    EXPECT_NE(complaint([&](Ns& n) { n.adapter = bad; }).find("adapter"), std::string::npos);
    EXPECT_NE(complaint([&](Ns& n) { n.extension["k"] = bad; }).find("extension"),
              std::string::npos);
  }
  EXPECT_NE(complaint([](Ns& n) { n.model = std::string("a\0b", 3); }).find("model"),
            std::string::npos);
  EXPECT_NE(complaint([](Ns& n) {
              for (int i = 0; i < 65; ++i) n.extension[std::to_string(i)] = "";
            }).find("extension"),
            std::string::npos);
}

TEST(Namespace, TheLargestValidOneFitsTheLimit) {
  NamespaceDescriptor ns = Full();
  for (const internal::NamespaceField& field : internal::kNamespaceFields) {
    if (const auto* m = std::get_if<std::string NamespaceDescriptor::*>(&field.member)) {
      (ns.**m).assign(NamespaceDescriptor::kMaxText, 'x');
    }
  }
  ns.extension.clear();
  for (int i = 0; i < 64; ++i) {
    ns.extension[std::string(1022, 'n') + std::to_string(10 + i)] = std::string(1024, 'v');
  }
  ASSERT_TRUE(ns.Validate().ok());
  EXPECT_LE(ns.Encode().size(), NamespaceDescriptor::kMaxEncodedBytes);
  EXPECT_EQ(*NamespaceDescriptor::Decode(ns.Encode()), ns);
  EXPECT_EQ(*NamespaceDescriptor::FromJson(ns.ToJson(NamespaceDescriptor::Salt::kShow)), ns);
}

TEST(NamespaceJson, RoundTripsWithEveryFieldInOrder) {
  const NamespaceDescriptor ns = Full();
  const std::string json = ns.ToJson(NamespaceDescriptor::Salt::kShow);
  EXPECT_EQ(*NamespaceDescriptor::FromJson(json), ns);
  size_t at = 0;
  for (const internal::NamespaceField& field : internal::kNamespaceFields) {
    const size_t found = json.find("\"" + std::string(field.name) + "\":");
    ASSERT_NE(found, std::string::npos) << field.name;
    EXPECT_GE(found, at);
    at = found;
  }
}

TEST(NamespaceJson, HidesTheSaltUnlessAsked) {
  const std::string json = Full().ToJson();
  EXPECT_EQ(json.find("s3cret"), std::string::npos);
  EXPECT_NE(json.find("tenant_salt_digest"), std::string::npos);
  // The hidden form must not come back as a descriptor without a salt.
  const Status s = NamespaceDescriptor::FromJson(json).status();
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.message().find("tenant_salt"), std::string::npos);
  EXPECT_TRUE(NamespaceDescriptor::FromJson(NamespaceDescriptor().ToJson()).ok());
}

TEST(NamespaceJson, ErrorsNameTheMemberAndTheNearestOne) {
  const auto complaint = [](std::string_view json) {
    const auto ns = NamespaceDescriptor::FromJson(json);
    EXPECT_EQ(ns.status().code(), Code::kInvalidArgument) << json;
    return ns.status().message();
  };
  EXPECT_NE(complaint(R"({"modle": "x"})").find("did you mean \"model\"?"), std::string::npos);
  EXPECT_NE(complaint(R"({"kvdtype": "x"})").find("did you mean \"kv_dtype\"?"), std::string::npos);
  EXPECT_EQ(complaint(R"({"quite_else_where": 1})").find("did you mean"), std::string::npos);
  EXPECT_NE(complaint(R"({"model": 5})").find("\"model\": want a string"), std::string::npos);
  EXPECT_NE(complaint(R"({"block_tokens": "16"})").find("block_tokens"), std::string::npos);
  EXPECT_NE(complaint(R"({"block_tokens": -16})").find("0 to 4294967295"), std::string::npos);
  EXPECT_NE(complaint(R"({"block_tokens": 16.0})").find("block_tokens"), std::string::npos);
  EXPECT_NE(complaint(R"({"block_tokens": 4294967296})").find("block_tokens"), std::string::npos);
  EXPECT_NE(complaint(R"({"adapter_generation": 18446744073709551616})").find("adapter_generation"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"extension": {"a": 1}})").find("extension"), std::string::npos);
  EXPECT_NE(complaint(R"({"extension": []})").find("extension"), std::string::npos);
  EXPECT_NE(complaint(R"({"model": "a", "model": "b"})").find("twice"), std::string::npos);
  EXPECT_NE(complaint(R"({"extension": {"a": "1", "a": "2"}})").find("twice"), std::string::npos);
  EXPECT_NE(complaint(R"({"tp_size": 0})").find("tp_size"), std::string::npos);
  complaint("");
  complaint("[]");
  complaint("{");
  complaint(R"({"model": "x"} trailing)");
  complaint("{\"model\": \"\xFF\"}");
  complaint(std::string(100'000, '['));
}

}  // namespace
}  // namespace penstock
