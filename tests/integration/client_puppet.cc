#include "tests/integration/client_puppet.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>

#include "common/base/random.h"

namespace penstock {
namespace {

Deadline Patience() { return Deadline::After(std::chrono::seconds(20)); }

}  // namespace

class Puppet::Events final : public SessionEvents {
 public:
  Events(Puppet& puppet, Session& session) : puppet_(puppet), session_(session) {
    MutexLock lock(puppet_.mu_);
    puppet_.session_ = &session;
    ++puppet_.sessions_;
    puppet_.changed_.SignalAll();
  }

  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override {
    MutexLock lock(puppet_.mu_);
    if (type != MessageType::kCancel) {
      // Data of a lower number than the latest request's would be thrown away.
      EXPECT_GT(request_id, latest_request_) << "the request ids of a session increase";
      latest_request_ = request_id;
    }
    if (type == MessageType::kOpenNamespace) {
      const auto request = OpenNamespaceRequest::Decode(body);
      const bool close = request.ok() && request->close;
      ++(close ? puppet_.closed_namespaces_ : puppet_.opened_namespaces_);
      const Status answer = close ? Status::Ok() : puppet_.namespace_answer_;
      session_.SendMessage(MessageType::kReply, request_id,
                           EncodeReply(ReplyHead::From(type, answer)));
    } else {
      puppet_.messages_.push_back({type, request_id, {body.begin(), body.end()}});
    }
    puppet_.changed_.SignalAll();
  }

  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override {
    MutexLock lock(puppet_.mu_);
    Incoming& incoming = puppet_.incoming_[{request_id, header.item}];
    if (!incoming.bytes) {
      incoming.bytes = std::make_unique_for_overwrite<std::byte[]>(kMaxItemBytes);
    }
    pieces.push_back({incoming.bytes.get() + header.offset, header.length});
    return true;
  }

  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override {
    MutexLock lock(puppet_.mu_);
    if (status.ok()) puppet_.incoming_[{request_id, header.item}].landed += header.length;
    puppet_.changed_.SignalAll();
  }

  void OnDataFailed(uint64_t request_id, const DataHeader& header) override {
    MutexLock lock(puppet_.mu_);
    puppet_.incoming_[{request_id, header.item}].failure = CodeFromWire(header.status);
    puppet_.changed_.SignalAll();
  }

  void OnClosed(const Status& why) override {
    MutexLock lock(puppet_.mu_);
    if (puppet_.session_ == &session_) {
      puppet_.session_ = nullptr;
      puppet_.closed_ = why;
      puppet_.messages_.clear();
    }
    puppet_.changed_.SignalAll();
  }

 private:
  Puppet& puppet_;
  Session& session_;
  uint64_t latest_request_ = 0;
};

Puppet::Puppet(const SessionLimits& limits) : limits_(limits) {
  std::string name = std::filesystem::temp_directory_path() / "penstock-puppet-XXXXXX";
  directory_ = mkdtemp(name.data());
  loop_ = std::move(EventLoop::Start("puppet")).value();
  Start();
}

Puppet::~Puppet() {
  Stop();
  loop_->Stop();
  std::filesystem::remove_all(directory_);
}

void Puppet::Start() {
  incarnation_ = NewIncarnation();
  ListenOptions options;
  options.addresses = {Address::Parse(address()).value()};
  options.wires = {"tcp"};
  options.incarnation = incarnation_;
  options.limits = limits_;
  auto listener = Listener::Start(options, {loop_.get()}, [this](Session& session) {
    return std::make_unique<Events>(*this, session);
  });
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  listener_ = std::move(listener).value();
}

void Puppet::Stop() {
  if (listener_) listener_->Stop(Status(Code::kDisconnected, "the puppet stops"));
  listener_.reset();
}

std::unique_ptr<Client> Puppet::Connect(const std::function<void(ClientOptions&)>& edit) {
  ClientOptions options;
  options.address = address();
  options.wire = "tcp";
  if (edit) edit(options);
  auto client = Client::Create(options);
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_TRUE((*client)->WaitConnected(Patience())) << (*client)->stats().last_error;
  return std::move(client).value();
}

Puppet::Message Puppet::Next(MessageType type) {
  const Deadline deadline = Patience();
  MutexLock lock(mu_);
  const auto skip = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !messages_.empty() && type != MessageType::kCancel &&
           messages_.front().type == MessageType::kCancel;
  };
  while (messages_.empty() || skip()) {
    if (skip()) {
      messages_.pop_front();
      continue;
    }
    if (!changed_.WaitUntil(mu_, deadline.at())) {
      ADD_FAILURE() << "no message of type " << static_cast<int>(type);
      return {};
    }
  }
  Message message = std::move(messages_.front());
  messages_.pop_front();
  EXPECT_EQ(static_cast<int>(message.type), static_cast<int>(type));
  return message;
}

bool Puppet::Quiet() {
  MutexLock lock(mu_);
  return messages_.empty();
}

size_t Puppet::opened_namespaces() {
  MutexLock lock(mu_);
  return opened_namespaces_;
}

size_t Puppet::closed_namespaces() {
  MutexLock lock(mu_);
  return closed_namespaces_;
}

void Puppet::WaitClosedNamespaces(size_t count) {
  MutexLock lock(mu_);
  while (closed_namespaces_ < count) changed_.Wait(mu_);
}

void Puppet::AnswerNamespaces(const Status& status) {
  MutexLock lock(mu_);
  namespace_answer_ = status;
}

size_t Puppet::sessions() {
  MutexLock lock(mu_);
  return sessions_;
}

Session* Puppet::WaitSession() {
  const Deadline deadline = Patience();
  MutexLock lock(mu_);
  while (session_ == nullptr) {
    if (!changed_.WaitUntil(mu_, deadline.at())) return nullptr;
  }
  return session_;
}

void Puppet::Send(MessageType type, uint64_t id, std::vector<std::byte> body) {
  Session* session = WaitSession();
  ASSERT_NE(session, nullptr);
  loop_->Run([&] { session->SendMessage(type, id, body); });
}

void Puppet::Data(uint64_t id, uint32_t item, uint64_t offset, std::string bytes) {
  Session* session = WaitSession();
  ASSERT_NE(session, nullptr);
  bool done = false;
  Mutex mu;
  CondVar changed;
  loop_->Run([&] {
    const iovec piece{bytes.data(), bytes.size()};
    const DataHeader header{.item = item, .offset = offset, .length = bytes.size()};
    session->SendData(id, header, {&piece, 1}, [&](const Status&) {
      MutexLock lock(mu);
      done = true;
      changed.SignalAll();
    });
  });
  MutexLock lock(mu);
  while (!done) changed.Wait(mu);
}

void Puppet::FailItem(uint64_t id, uint32_t item, Code code) {
  Session* session = WaitSession();
  ASSERT_NE(session, nullptr);
  loop_->Run([&] {
    const DataHeader header{.item = item, .status = static_cast<uint16_t>(code)};
    session->SendData(id, header, {}, {});
  });
}

std::string Puppet::Received(uint64_t id, uint32_t item, size_t count) {
  const Deadline deadline = Patience();
  MutexLock lock(mu_);
  while (incoming_[{id, item}].landed < count) {
    if (!changed_.WaitUntil(mu_, deadline.at())) {
      ADD_FAILURE() << "only " << incoming_[{id, item}].landed << " of " << count << " bytes came";
      break;
    }
  }
  const Incoming& incoming = incoming_[{id, item}];
  return {reinterpret_cast<const char*>(incoming.bytes.get()), incoming.landed};
}

Code Puppet::ReceivedFailure(uint64_t id, uint32_t item) {
  const Deadline deadline = Patience();
  MutexLock lock(mu_);
  while (incoming_[{id, item}].failure == Code::kOk) {
    if (!changed_.WaitUntil(mu_, deadline.at())) return Code::kOk;
  }
  return incoming_[{id, item}].failure;
}

Status Puppet::WaitClosed() {
  const Deadline deadline = Patience();
  MutexLock lock(mu_);
  while (session_ != nullptr) {
    if (!changed_.WaitUntil(mu_, deadline.at())) return Status(Code::kDeadlineExceeded);
  }
  return closed_;
}

}  // namespace penstock
