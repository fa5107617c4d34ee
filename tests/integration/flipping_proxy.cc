#include "tests/integration/flipping_proxy.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

namespace penstock {

FlippingProxy::FlippingProxy(const Address& daemon, std::string marker)
    : marker_(std::move(marker)) {
  daemon_ = Resolve(daemon, /*passive=*/false).value().front();
  const auto any = Resolve(Address{.host = "127.0.0.1"}, /*passive=*/true).value();
  listener_ = ListenOn(any.front(), /*v6_only=*/true, 16).value();
  address_ = ToAddress(LocalAddress(listener_.get()).value());
  acceptor_ = std::thread([this] { Accept(); });
}

FlippingProxy::~FlippingProxy() {
  over_ = true;
  shutdown(listener_.get(), SHUT_RDWR);  // Wakes the poll.
  acceptor_.join();
  std::vector<std::thread> pumps;
  {
    MutexLock lock(mu_);
    for (const auto& pair : pairs_) {
      shutdown(pair->client.get(), SHUT_RDWR);
      shutdown(pair->daemon.get(), SHUT_RDWR);
    }
    pumps.swap(pumps_);
  }
  for (std::thread& pump : pumps) pump.join();
}

void FlippingProxy::Accept() {
  while (!over_) {
    pollfd ready{listener_.get(), POLLIN, 0};
    if (poll(&ready, 1, -1) < 0) continue;
    const int client = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    auto pair = std::make_unique<Pair>();
    pair->client = UniqueFd(client);
    pair->daemon = UniqueFd(socket(daemon_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(pair->daemon.get(), daemon_.get(), daemon_.length) != 0) continue;
    MutexLock lock(mu_);
    const int a = pair->client.get(), b = pair->daemon.get();
    pumps_.emplace_back([this, a, b] { Pump(a, b); });
    pumps_.emplace_back([this, a, b] { Pump(b, a); });
    pairs_.push_back(std::move(pair));
  }
}

void FlippingProxy::Pump(int from, int to) {
  std::vector<char> buffer(64 << 10);
  size_t matched = 0;
  for (;;) {
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    for (ssize_t i = 0; i < got; ++i) {
      char& c = buffer[static_cast<size_t>(i)];
      if (matched == marker_.size()) {
        matched = 0;
        if (on_) {
          c ^= 0x10;
          ++flipped_;
        }
      }
      matched = c == marker_[matched] ? matched + 1 : c == marker_[0] ? 1 : 0;
    }
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n =
          send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += n;
    }
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace penstock
