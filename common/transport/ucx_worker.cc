#include "common/transport/ucx_worker.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <utility>

namespace penstock {
namespace {

// Calls of progress in one turn of the loop, so that others get theirs.
constexpr int kProgressPerTurn = 64;
// Endpoints that have not said whose they are, and how long they have for it.
constexpr size_t kMaxUnattached = 256;
constexpr std::chrono::seconds kAttachTimeout{5};
// How long the end of a worker waits for its endpoints to close.
constexpr std::chrono::seconds kEndPatience{1};

// Lives in poller's closure: as long as the loop.
thread_local UcxWorker* this_loops_worker = nullptr;

ByteSpan Bytes(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), size};
}

// A small message whose header must live until it is sent.
struct ControlSend {
  const UcxLibrary* ucx;
  std::vector<std::byte> header;
};

void OnControlSent(void* request, ucs_status_t /*status*/, void* user_data) {
  const std::unique_ptr<ControlSend> send(static_cast<ControlSend*>(user_data));
  send->ucx->ucp_request_free(request);
}

}  // namespace

UcxWorker::UcxWorker(EventLoop& loop, const UcxLibrary& ucx, ucp_worker_h worker)
    : loop_(loop), ucx_(ucx), worker_(worker) {}

Result<UcxWorker*> UcxWorker::OfThisLoop(EventLoop& loop, const UcxConfig& config) {
  if (this_loops_worker != nullptr) return this_loops_worker;
  PENSTOCK_ASSIGN_OR_RETURN(UcxContext* const context, UcxContext::Get(config));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h handle = nullptr;
  const ucs_status_t status = context->ucx().ucp_worker_create(context->handle(), &params, &handle);
  if (status != UCS_OK) return UcxStatus(context->ucx(), status, "making a UCX worker");
  const std::shared_ptr<UcxWorker> worker(new UcxWorker(loop, context->ucx(), handle));
  PENSTOCK_RETURN_IF_ERROR(worker->Start());
  // The loop holds the worker, and drops it on its own thread when it ends.
  loop.AddPoller([worker] { return worker->Poll(); }, [worker] { return worker->Arm(); });
  this_loops_worker = worker.get();
  return worker.get();
}

Status UcxWorker::Start() {
  PENSTOCK_RETURN_IF_ERROR(SetHandlers());
  const ucs_status_t status = ucx_.ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxStatus(ucx_, status, "UCX's event descriptor");
  // Being awake is all that is needed: the poller does the work.
  return loop_.Watch(event_fd_, EPOLLIN, [](uint32_t) {});
}

UcxWorker::~UcxWorker() {
  this_loops_worker = nullptr;
  if (event_fd_ >= 0) loop_.Unwatch(event_fd_);
  if (listener_ != nullptr) ucx_.ucp_listener_destroy(listener_);
  // Sessions have closed theirs. What is left never attached, or is still connecting: UCX 1.13 ends
  // the process if its worker goes while such an endpoint has something to send.
  while (!endpoints_.empty()) Close(endpoints_.begin()->second.get(), nullptr);
  const Deadline patience = Deadline::After(kEndPatience);
  while (closing_ > 0 && !patience.Expired()) ucx_.ucp_worker_progress(worker_);
  // Better a worker that nobody drives any more than none and the end of the process.
  if (closing_ == 0) ucx_.ucp_worker_destroy(worker_);
}

bool UcxWorker::Poll() {
  for (int i = 0; i < kProgressPerTurn; ++i) {
    if (ucx_.ucp_worker_progress(worker_) == 0) return false;
  }
  return true;
}

bool UcxWorker::Arm() { return ucx_.ucp_worker_arm(worker_) == UCS_OK; }

// ---------------------------------------------------------------------------------- endpoints

Result<UcxEndpoint*> UcxWorker::MakeEndpoint(ucp_ep_params_t& params) {
  auto endpoint = std::make_unique<UcxEndpoint>();
  endpoint->worker = this;
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = endpoint.get();
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    auto* const failed = static_cast<UcxEndpoint*>(arg);
    UcxWorker* const worker = failed->worker;
    if (failed->user == nullptr) return;  // Its timer closes it.
    failed->user->OnUcxError(UcxStatus(worker->ucx_, status, "the ucx wire"));
  };
  const ucs_status_t status = ucx_.ucp_ep_create(worker_, &params, &endpoint->handle);
  if (status != UCS_OK) return UcxStatus(ucx_, status, "making a UCX endpoint");
  UcxEndpoint* const made = endpoint.get();
  endpoints_.emplace(made->handle, std::move(endpoint));
  return made;
}

Result<UcxEndpoint*> UcxWorker::Connect(const SocketAddress& address, const SessionToken& token,
                                        UcxEndpointUser& user) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.length;
  PENSTOCK_ASSIGN_OR_RETURN(UcxEndpoint* const endpoint, MakeEndpoint(params));
  endpoint->user = &user;
  const Status sent = SendControl(endpoint, MessageType::kAttach, EncodeAttach({token, 0}));
  if (!sent.ok()) {
    Close(endpoint, nullptr);
    return sent;
  }
  return endpoint;
}

void UcxWorker::Close(UcxEndpoint* endpoint, std::function<void()> closed) {
  endpoint->user = nullptr;
  loop_.CancelTimer(endpoint->timer);
  struct Closing {
    UcxWorker* worker;
    std::shared_ptr<UcxEndpoint> endpoint;  // UCX may still report an error to it.
    std::function<void()> closed;

    void Finish() {
      --worker->closing_;
      // Not from inside UCX, and not before what else it has to call back.
      worker->loop_.Post([endpoint = std::move(endpoint), closed = std::move(closed)] {
        if (closed) closed();
      });
      delete this;
    }
  };
  // Out of the table at once: UCX may give its handle to the next connection before it calls back.
  auto node = endpoints_.extract(endpoint->handle);
  ++closing_;
  auto* const closing = new Closing{this, std::move(node.mapped()), std::move(closed)};
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = closing;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* const finished = static_cast<Closing*>(user_data);
    finished->worker->ucx_.ucp_request_free(request);
    finished->Finish();
  };
  const ucs_status_ptr_t request = ucx_.ucp_ep_close_nbx(closing->endpoint->handle, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) closing->Finish();
}

// ---------------------------------------------------------------------------------- listening

Result<uint16_t> UcxWorker::Listen(const SocketAddress& address) {
  if (listener_ != nullptr) return port_;
  SocketAddress any_port = address;
  if (any_port.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&any_port.storage)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port = 0;
  }
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = any_port.get();
  params.sockaddr.addrlen = any_port.length;
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
    static_cast<UcxWorker*>(arg)->OnConnection(request);
  };
  ucs_status_t status = ucx_.ucp_listener_create(worker_, &params, &listener_);
  if (status != UCS_OK) {
    listener_ = nullptr;
    return UcxStatus(ucx_, status, fmt::format("UCX listening on {}", ToString(any_port)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucx_.ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) return UcxStatus(ucx_, status, "asking UCX for its port");
  SocketAddress real;
  real.storage = attributes.sockaddr;
  real.length = any_port.length;
  port_ = ToAddress(real).port;
  return port_;
}

void UcxWorker::OnConnection(ucp_conn_request_h request) {
  if (unattached_ >= kMaxUnattached) {
    ucx_.ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const auto made = MakeEndpoint(params);
  if (!made.ok()) return;
  UcxEndpoint* const endpoint = *made;
  ++unattached_;
  endpoint->timer = loop_.After(kAttachTimeout, [this, endpoint] {
    --unattached_;
    Close(endpoint, nullptr);
  });
}

void UcxWorker::Expect(const SessionToken& token, Attached attached) {
  expected_[token] = std::move(attached);
}

void UcxWorker::Forget(const SessionToken& token) { expected_.erase(token); }

// ---------------------------------------------------------------------------------- messages

Status UcxWorker::SetHandlers() {
  using Handler =
      ucs_status_t (*)(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*);
  const Handler on_data = [](void* arg, const void* header, size_t header_size, void* data,
                             size_t length, const ucp_am_recv_param_t* param) {
    return static_cast<UcxWorker*>(arg)->OnData(Bytes(header, header_size), data, length, *param);
  };
  const Handler on_attach = [](void* arg, const void* header, size_t header_size, void*, size_t,
                               const ucp_am_recv_param_t* param) {
    auto* const self = static_cast<UcxWorker*>(arg);
    return self->OnAttach(Bytes(header, header_size), self->Find(*param));
  };
  const Handler on_attach_reply = [](void* arg, const void*, size_t, void*, size_t,
                                     const ucp_am_recv_param_t* param) {
    auto* const self = static_cast<UcxWorker*>(arg);
    return self->OnAttachReply(self->Find(*param));
  };
  const std::pair<MessageType, Handler> handlers[] = {{MessageType::kData, on_data},
                                                      {MessageType::kAttach, on_attach},
                                                      {MessageType::kAttachReply, on_attach_reply}};
  for (const auto& [type, handler] : handlers) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = static_cast<unsigned>(type);
    param.cb = handler;
    param.arg = this;
    const ucs_status_t status = ucx_.ucp_worker_set_am_recv_handler(worker_, &param);
    if (status != UCS_OK) return UcxStatus(ucx_, status, "UCX active messages");
  }
  return Status::Ok();
}

// The endpoint that a message came on, unless it is closing.
UcxEndpoint* UcxWorker::Find(const ucp_am_recv_param_t& param) {
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  const auto it = endpoints_.find(param.reply_ep);
  return it == endpoints_.end() ? nullptr : it->second.get();
}

ucs_status_t UcxWorker::OnAttach(ByteSpan header, UcxEndpoint* endpoint) {
  if (endpoint == nullptr || endpoint->user != nullptr) return UCS_OK;
  const auto frame = ParseFrameHeader(header);
  if (!frame.ok() || frame->body_bytes != header.size() - sizeof(FrameHeader)) return UCS_OK;
  const auto attach = ParseAttach(header.subspan(sizeof(FrameHeader)));
  const auto it = attach.ok() ? expected_.find(attach->token) : expected_.end();
  if (it == expected_.end()) return UCS_OK;  // Its timer closes it.
  if (!SendControl(endpoint, MessageType::kAttachReply, EncodeVerdict(Status::Ok())).ok()) {
    return UCS_OK;
  }
  loop_.CancelTimer(endpoint->timer);
  --unattached_;
  const Attached attached = std::move(it->second);
  expected_.erase(it);
  attached(endpoint);
  return UCS_OK;
}

ucs_status_t UcxWorker::OnAttachReply(UcxEndpoint* endpoint) {
  if (endpoint != nullptr && endpoint->user != nullptr) endpoint->user->OnUcxAttached();
  return UCS_OK;
}

ucs_status_t UcxWorker::OnData(ByteSpan header, void* data, size_t length,
                               const ucp_am_recv_param_t& param) {
  UcxEndpoint* const endpoint = Find(param);
  if (endpoint == nullptr || endpoint->user == nullptr) return UCS_OK;
  const bool rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return endpoint->user->OnUcxData(header, data, length, rendezvous) ? UCS_INPROGRESS : UCS_OK;
}

Status UcxWorker::SendControl(UcxEndpoint* endpoint, MessageType type, ByteSpan body) {
  auto send = std::make_unique<ControlSend>();
  send->ucx = &ucx_;
  ByteWriter header;
  header.Write(MakeFrameHeader(type, 0, static_cast<uint32_t>(body.size()))).Append(body);
  send->header = header.Release();
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnControlSent;
  param.user_data = send.get();
  const ucs_status_ptr_t request =
      ucx_.ucp_am_send_nbx(endpoint->handle, static_cast<unsigned>(type), send->header.data(),
                           send->header.size(), nullptr, 0, &param);
  if (UCS_PTR_IS_ERR(request)) {
    return UcxStatus(ucx_, UCS_PTR_STATUS(request), "sending on the ucx wire");
  }
  if (request != nullptr) (void)send.release();  // OnControlSent() has it.
  return Status::Ok();
}

}  // namespace penstock
