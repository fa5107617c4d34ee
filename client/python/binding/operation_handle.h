// OperationHandle: an Operation as Python holds it, with the Python objects whose memory it uses.
//
// The buffers are let go as soon as Python sees the operation done, and at the latest when the
// handle goes, which cancels first. Every method needs the GIL and gives it up while it waits.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_OPERATION_HANDLE_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_OPERATION_HANDLE_H_

#include <memory>
#include <optional>

#include "client/lib/client.h"
#include "client/python/binding/held_buffers.h"

namespace penstock::python {

class OperationHandle {
 public:
  // `owner` (may be null) lives at least as long as the operation.
  OperationHandle(OperationPtr operation, HeldBuffers buffers, std::shared_ptr<void> owner);
  ~OperationHandle();
  OperationHandle(const OperationHandle&) = delete;
  OperationHandle& operator=(const OperationHandle&) = delete;

  bool Done();
  // Nothing: waits for as long as operations live. A signal handler that raises ends the wait; the
  // operation goes on.
  bool Wait(std::optional<double> timeout_seconds);
  void Cancel();

  // The operation. Throws StatusError(kInternal) unless it is done.
  const Operation& Finished();

 private:
  const std::shared_ptr<void> owner_;
  HeldBuffers buffers_;
  const OperationPtr operation_;
};

// A duration out of a number of seconds; negative ones are zero. Throws ValueError for NaN.
Duration SecondsToDuration(double seconds);

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_OPERATION_HANDLE_H_
