// ClientHandle: a Client as Python holds it. Unlike the Client itself it can be closed at any time,
// whatever other threads are doing with it.
//
// Every method needs the GIL and gives it up where it may block.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_CLIENT_HANDLE_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_CLIENT_HANDLE_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/lib/client.h"
#include "client/python/binding/gil.h"
#include "client/python/binding/operation_handle.h"
#include "common/base/gate.h"
#include "common/base/mutex.h"

namespace penstock::python {

// Something that uses a client and must end before it.
class ClientUser {
 public:
  virtual ~ClientUser() = default;
  // Called without the GIL; idempotent.
  virtual void EndUse() = 0;
};

class ClientHandle : public std::enable_shared_from_this<ClientHandle> {
 public:
  // Throws StatusError.
  explicit ClientHandle(const ClientOptions& options);
  ~ClientHandle();
  ClientHandle(const ClientHandle&) = delete;
  ClientHandle& operator=(const ClientHandle&) = delete;

  // Runs `call(Client&)` without the GIL and returns what it returns. Throws
  // StatusError(kDisconnected) once closed, kFenced in a process that was forked off.
  template <typename Call>
  auto With(Call&& call) {
    const Gate::Pass pass = Enter();
    return WithoutGil([&] { return call(*client_); });
  }
  // The same for a call that starts an operation, which may use `buffers`.
  template <typename Call>
  std::unique_ptr<OperationHandle> Start(HeldBuffers buffers, Call&& call) {
    OperationPtr operation = With(std::forward<Call>(call));
    return std::make_unique<OperationHandle>(std::move(operation), std::move(buffers),
                                             shared_from_this());
  }

  bool WaitConnected(double timeout_seconds);
  // After Close(): not connected.
  ClientStats stats();

  // For a user that EndUse() makes drop it again.
  std::shared_ptr<Client> Share(std::weak_ptr<ClientUser> user);

  // Ends the users, cancels what is in flight and waits for it. Idempotent. Does nothing in a
  // process that was forked off: the threads are its parent's.
  void Close();

  bool InForkedChild() const;
  // Throws StatusError(kFenced).
  void ThrowInForkedChild() const;

 private:
  Gate::Pass Enter();
  std::optional<Gate::Pass> TryEnter();
  void CloseWithoutGil(const std::vector<std::shared_ptr<ClientUser>>& users)
      ABSL_LOCKS_EXCLUDED(closing_mu_);

  const pid_t pid_;
  std::atomic<bool> closing_ = false;
  Gate inside_;
  std::shared_ptr<Client> client_;                // With a pass of inside_, or by Close().
  std::vector<std::weak_ptr<ClientUser>> users_;  // With the GIL.
  Mutex closing_mu_;  // Held for as long as closing takes: another closer waits.
};

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_CLIENT_HANDLE_H_
