// UcxWorker: the UCX worker of one loop. It sleeps with the loop and wakes it through UCX's event
// descriptor; it owns the endpoints of every ucx wire of the loop, and the listener that daemons
// have on it.

#ifndef PENSTOCK_COMMON_TRANSPORT_UCX_WORKER_H_
#define PENSTOCK_COMMON_TRANSPORT_UCX_WORKER_H_

#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/transport/event_loop.h"
#include "common/transport/hello.h"
#include "common/transport/socket.h"
#include "common/transport/ucx_context.h"

namespace penstock {

class UcxWorker;

// What happens on an endpoint.
class UcxEndpointUser {
 public:
  // A DATA message. `data` is the payload itself, or, if `rendezvous`, what ucp_am_recv_data_nbx()
  // takes. Returns true if it has taken the latter over.
  virtual bool OnUcxData(ByteSpan header, void* data, size_t length, bool rendezvous) = 0;
  // The daemon has accepted the ATTACH.
  virtual void OnUcxAttached() = 0;
  virtual void OnUcxError(const Status& why) = 0;

 protected:
  ~UcxEndpointUser() = default;
};

struct UcxEndpoint {
  UcxWorker* worker = nullptr;
  ucp_ep_h handle = nullptr;
  UcxEndpointUser* user = nullptr;  // None until ATTACH has come.
  EventLoop::TimerId timer = 0;     // Of one that nobody has attached.
};

class UcxWorker {
 public:
  // The worker of the loop that this is called on; made when there is none, and gone with the loop.
  static Result<UcxWorker*> OfThisLoop(EventLoop& loop, const UcxConfig& config);
  ~UcxWorker();

  EventLoop& loop() { return loop_; }
  const UcxLibrary& ucx() const { return ucx_; }
  ucp_worker_h handle() const { return worker_; }

  // Listens on the host of `address` and a port of the kernel's choice, once; returns the port.
  Result<uint16_t> Listen(const SocketAddress& address);

  // Gives the endpoint that says ATTACH with `token` to `user`, until Forget().
  using Attached = std::function<void(UcxEndpoint*)>;
  void Expect(const SessionToken& token, Attached attached);
  void Forget(const SessionToken& token);

  // Connects to a daemon's listener and says ATTACH.
  Result<UcxEndpoint*> Connect(const SocketAddress& address, const SessionToken& token,
                               UcxEndpointUser& user);

  // Closes by force; whatever is under way on the endpoint ends with an error. `closed` is called
  // from the loop, when all callbacks of its operations have been called.
  void Close(UcxEndpoint* endpoint, std::function<void()> closed);

 private:
  UcxWorker(EventLoop& loop, const UcxLibrary& ucx, ucp_worker_h worker);

  Status Start();
  bool Poll();
  bool Arm();
  void OnConnection(ucp_conn_request_h request);
  Result<UcxEndpoint*> MakeEndpoint(ucp_ep_params_t& params);
  UcxEndpoint* Find(const ucp_am_recv_param_t& param);
  ucs_status_t OnAttach(ByteSpan header, UcxEndpoint* endpoint);
  ucs_status_t OnAttachReply(UcxEndpoint* endpoint);
  ucs_status_t OnData(ByteSpan header, void* data, size_t length, const ucp_am_recv_param_t& param);
  Status SendControl(UcxEndpoint* endpoint, MessageType type, ByteSpan body);
  Status SetHandlers();

  EventLoop& loop_;
  const UcxLibrary& ucx_;
  const ucp_worker_h worker_;
  int event_fd_ = -1;
  ucp_listener_h listener_ = nullptr;
  uint16_t port_ = 0;
  absl::flat_hash_map<ucp_ep_h, std::unique_ptr<UcxEndpoint>> endpoints_;
  size_t unattached_ = 0;
  size_t closing_ = 0;  // Endpoints out of the table whose close has not called back.
  absl::flat_hash_map<SessionToken, Attached> expected_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_UCX_WORKER_H_
