// FlippingProxy: stands between a client and a daemon on TCP and changes one bit of the byte that
// follows a marker, in either direction, while it is told to.

#ifndef PENSTOCK_TESTS_INTEGRATION_FLIPPING_PROXY_H_
#define PENSTOCK_TESTS_INTEGRATION_FLIPPING_PROXY_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/socket.h"

namespace penstock {

class FlippingProxy {
 public:
  // The first character of `marker` must not occur in it again.
  FlippingProxy(const Address& daemon, std::string marker);
  ~FlippingProxy();

  const Address& address() const { return address_; }
  void Flip(bool on) { on_ = on; }
  int flipped() const { return flipped_; }

 private:
  struct Pair {
    UniqueFd client, daemon;
  };
  void Accept();
  void Pump(int from, int to);

  const std::string marker_;
  SocketAddress daemon_;
  Address address_;
  UniqueFd listener_;
  std::atomic<bool> on_{false}, over_{false};
  std::atomic<int> flipped_{0};
  Mutex mu_;
  std::vector<std::unique_ptr<Pair>> pairs_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> pumps_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_FLIPPING_PROXY_H_
