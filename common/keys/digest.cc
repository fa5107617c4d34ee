#include "common/keys/digest.h"

#include <openssl/evp.h>

#include <cstdlib>
#include <memory>

namespace penstock {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// One context a thread: creating it costs as much as hashing a short key.
EVP_MD_CTX* ThreadContext() {
  struct Free {
    void operator()(EVP_MD_CTX* ctx) const { EVP_MD_CTX_free(ctx); }
  };
  thread_local std::unique_ptr<EVP_MD_CTX, Free> ctx(EVP_MD_CTX_new());
  return ctx.get();
}

}  // namespace

Digest256 Digest256::Sha256(std::initializer_list<ByteSpan> parts) {
  EVP_MD_CTX* ctx = ThreadContext();
  bool ok = ctx != nullptr && EVP_DigestInit_ex(ctx, EVP_sha256(), nullptr) == 1;
  for (const ByteSpan part : parts) {
    ok = ok && EVP_DigestUpdate(ctx, part.data(), part.size()) == 1;
  }
  Digest256 digest;
  ok = ok && EVP_DigestFinal_ex(ctx, digest.bytes.data(), nullptr) == 1;
  if (!ok) std::abort();  // Only out of memory: an identity must never be a guess.
  return digest;
}

Result<Digest256> Digest256::FromHex(std::string_view hex) {
  if (hex.size() != 2 * kBytes) {
    return Status(Code::kInvalidArgument, "a digest is 64 hexadecimal digits");
  }
  Digest256 digest;
  for (size_t i = 0; i < kBytes; ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return Status(Code::kInvalidArgument, "a digest is 64 hexadecimal digits");
    }
    digest.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return digest;
}

std::string Digest256::ToHex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * kBytes);
  for (const uint8_t b : bytes) {
    hex.push_back(kDigits[b >> 4]);
    hex.push_back(kDigits[b & 15]);
  }
  return hex;
}

}  // namespace penstock
