#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "common/keys/chunk_key.h"
#include "common/keys/namespace.h"
#include "tests/unit/golden/golden.h"

namespace penstock {
namespace {

using ::penstock::testing::ReadGolden;

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

std::string GoldenKey(const char* name) { return ReadGolden("keys.json").at(name); }

TEST(ChunkKey, KeysAreTheGoldenOnes) {
  NamespaceDescriptor descriptor;
  descriptor.tenant = "acme";
  descriptor.model = "m";
  const Fingerprint ns = descriptor.ComputeFingerprint();
  const ChunkKey first = PrefixKey(ns, std::nullopt, AsBytes("block hash"));
  const uint32_t tokens[] = {0, 1, 151643, 4294967295};
  EXPECT_EQ(first.ToHex(), GoldenKey("first"));
  EXPECT_EQ(PrefixKey(ns, first, AsBytes("another block hash")).ToHex(), GoldenKey("second"));
  EXPECT_EQ(PrefixTokensKey(ns, first, tokens).ToHex(), GoldenKey("tokens"));
  EXPECT_EQ(PrefixTokensKey(ns, std::nullopt, {}).ToHex(), GoldenKey("no_tokens"));
  EXPECT_EQ(NamedKey(ns, "codec/\u00e9").ToHex(), GoldenKey("named"));
}

// Digest of the keys of the corpus that make_golden.py describes: a chain of 1,000 chunks and
// 1,000 named objects.
std::string CorpusDigest() {
  const std::string json = ReadGolden("namespaces.json")[2]["descriptor"].dump();
  const Fingerprint ns = NamespaceDescriptor::FromJson(json).value().ComputeFingerprint();
  std::optional<ChunkKey> parent;
  std::vector<std::byte> all;
  const auto add = [&](const ChunkKey& key) {
    all.insert(all.end(), key.span().begin(), key.span().end());
  };
  for (uint32_t i = 0; i < 1000; ++i) {
    std::array<uint32_t, 16> tokens;
    for (uint32_t j = 0; j < 16; ++j) tokens[j] = (i * 16 + j) * 2654435761u;
    parent = PrefixTokensKey(ns, parent, tokens);
    add(*parent);
    add(NamedKey(ns, "object " + std::to_string(i)));
  }
  return Digest256::Sha256({all}).ToHex();
}

// Runs this program again as a fresh process that prints CorpusDigest().
std::string CorpusDigestOfChild(std::vector<std::string> environment) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return "pipe failed";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string argv0 = "keys_test", argv1 = "--print-corpus-digest";
  char* argv[] = {argv0.data(), argv1.data(), nullptr};
  std::vector<char*> env;
  for (std::string& variable : environment) env.push_back(variable.data());
  env.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv, env.data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n = 0; (n = read(out[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  close(out[0]);
  if (error == 0) waitpid(child, nullptr, 0);
  return text;
}

TEST(ChunkKey, TwentyFreshProcessesWithDifferentEnvironmentsAgreeWithTheGoldenFile) {
  const std::string want = GoldenKey("corpus_1000");
  EXPECT_EQ(CorpusDigest(), want);
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    std::vector<std::string> environment = {"PYTHONHASHSEED=" + n, "FILLER=" + std::string(i, 'x')};
    if (i % 2 == 0) environment.push_back("LC_ALL=tr_TR.UTF-8");
    if (i % 3 == 0) environment.push_back("MALLOC_PERTURB_=" + n);
    EXPECT_EQ(CorpusDigestOfChild(std::move(environment)), want) << i;
  }
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--print-corpus-digest") {
    std::fputs(penstock::CorpusDigest().c_str(), stdout);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
