#include "client/python/binding/client_handle.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

// How long Close() or a signal may go unnoticed by a thread that waits for the connection.
constexpr Duration kNoticeLatency = std::chrono::milliseconds(50);

}  // namespace

ClientHandle::ClientHandle(const ClientOptions& options)
    : pid_(getpid()), client_(ValueOrThrow(WithoutGil([&] { return Client::Create(options); }))) {}

ClientHandle::~ClientHandle() {
  Close();
  // Its threads did not come along, so its destructor would wait for them for ever.
  if (InForkedChild()) new std::shared_ptr<Client>(std::move(client_));  // NOLINT: leaked
}

bool ClientHandle::InForkedChild() const { return getpid() != pid_; }

void ClientHandle::ThrowInForkedChild() const {
  if (!InForkedChild()) return;
  throw StatusError(Code::kFenced, "the client was made before fork(): make another one");
}

Gate::Pass ClientHandle::Enter() {
  ThrowInForkedChild();
  std::optional<Gate::Pass> pass = TryEnter();
  if (!pass.has_value()) throw StatusError(Code::kDisconnected, "the client is closed");
  return std::move(*pass);
}

std::optional<Gate::Pass> ClientHandle::TryEnter() {
  // Nobody enters after Close() has listed the users, although the gate closes only later.
  if (InForkedChild() || closing_.load()) return std::nullopt;
  return inside_.TryEnter();
}

bool ClientHandle::WaitConnected(double timeout_seconds) {
  const Deadline deadline = Deadline::After(SecondsToDuration(timeout_seconds));
  while (!closing_.load()) {
    const Deadline slice = Deadline::At(std::min(deadline.at(), MonotonicNow() + kNoticeLatency));
    if (With([&](Client& client) { return client.WaitConnected(slice); })) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.Expired()) return false;
  }
  return false;
}

ClientStats ClientHandle::stats() {
  ClientStats closed;
  closed.last_error = "the client is closed";
  const std::optional<Gate::Pass> pass = TryEnter();
  if (!pass.has_value()) return closed;
  return WithoutGil([this] { return client_->stats(); });
}

std::shared_ptr<Client> ClientHandle::Share(std::weak_ptr<ClientUser> user) {
  const Gate::Pass pass = Enter();
  std::erase_if(users_, [](const std::weak_ptr<ClientUser>& known) { return known.expired(); });
  users_.push_back(std::move(user));
  return client_;
}

void ClientHandle::Close() {
  if (InForkedChild()) return;
  closing_.store(true);
  // The last to hold a user must have the GIL when it lets go.
  std::vector<std::shared_ptr<ClientUser>> users;
  for (const std::weak_ptr<ClientUser>& weak : users_) {
    if (std::shared_ptr<ClientUser> user = weak.lock()) users.push_back(std::move(user));
  }
  WithoutGil([&] { CloseWithoutGil(users); });
}

void ClientHandle::CloseWithoutGil(const std::vector<std::shared_ptr<ClientUser>>& users) {
  MutexLock lock(closing_mu_);
  inside_.Close();
  for (const std::shared_ptr<ClientUser>& user : users) user->EndUse();
  client_.reset();
}

}  // namespace penstock::python
