// KeyHash: the hash of a chunk key for the store's own tables.
//
// Keys come from clients, who may choose them: a hash that anybody can predict would let one of
// them slow down all by keys that collide. Hence the random secret, and all 32 bytes.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_KEY_HASH_H_
#define PENSTOCK_SERVER_DAEMON_STORE_KEY_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

#include "common/keys/digest.h"

namespace penstock {

// Random bits from the operating system, for secrets and identifiers.
inline uint64_t SystemRandom() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

struct KeyHash {
  size_t operator()(const Digest256& key) const {
    std::array<uint64_t, 4> w;
    std::memcpy(w.data(), key.bytes.data(), sizeof(w));
    const std::array<uint64_t, 4>& secret = Secret();
    return Mix(Mix(w[0] ^ secret[0], w[1] ^ secret[1]) ^ secret[2],
               Mix(w[2] ^ secret[2], w[3] ^ secret[3]) ^ secret[0]);
  }

 private:
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static const std::array<uint64_t, 4>& Secret() {
    static const std::array<uint64_t, 4> secret = {SystemRandom() | 1, SystemRandom() | 1,
                                                   SystemRandom() | 1, SystemRandom() | 1};
    return secret;
  }
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_KEY_HASH_H_
