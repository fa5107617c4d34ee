#include <gtest/gtest.h>

#include "common/keys/chunk_key.h"

namespace penstock {
namespace {

Fingerprint Ns(std::string_view text) { return Digest256::Sha256({AsBytes(text)}); }

TEST(Digest, Sha256OfAbcIsTheOneOfFips180) {
  EXPECT_EQ(Digest256::Sha256({AsBytes("a"), AsBytes("bc")}).ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, HexRoundTripsAndRejectsTheRest) {
  const Digest256 d = Ns("x");
  EXPECT_EQ(*Digest256::FromHex(d.ToHex()), d);
  EXPECT_FALSE(Digest256::FromHex("").ok());
  EXPECT_FALSE(Digest256::FromHex(d.ToHex().substr(1)).ok());
  EXPECT_FALSE(Digest256::FromHex(std::string(64, 'g')).ok());
}

TEST(ChunkKey, EveryIngredientChangesTheKey) {
  const Fingerprint a = Ns("a"), b = Ns("b");
  const uint32_t tokens[] = {1, 2, 3};
  const ChunkKey first = PrefixTokensKey(a, std::nullopt, tokens);
  const ChunkKey second = PrefixTokensKey(a, first, tokens);
  EXPECT_NE(first, second);
  EXPECT_NE(first, PrefixTokensKey(b, std::nullopt, tokens));
  EXPECT_NE(first, PrefixTokensKey(a, std::nullopt, std::span(tokens).first(2)));
  EXPECT_NE(NamedKey(a, "x"), PrefixKey(a, std::nullopt, AsBytes("x")));
  EXPECT_NE(NamedKey(a, "x"), NamedKey(a, "y"));
  EXPECT_NE(NamedKey(a, "x"), NamedKey(b, "x"));
}

}  // namespace
}  // namespace penstock
