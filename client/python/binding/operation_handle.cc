#include "client/python/binding/operation_handle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/python/binding/gil.h"
#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

// How long a signal may go unnoticed by a thread that waits.
constexpr Duration kSignalLatency = std::chrono::milliseconds(100);

}  // namespace

Duration SecondsToDuration(double seconds) {
  if (std::isnan(seconds)) throw py::value_error("a duration is not a number");
  const double longest = std::chrono::duration<double>(Deadline::kMax).count();
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, longest)));
}

OperationHandle::OperationHandle(OperationPtr operation, HeldBuffers buffers,
                                 std::shared_ptr<void> owner)
    : owner_(std::move(owner)), buffers_(std::move(buffers)), operation_(std::move(operation)) {}

OperationHandle::~OperationHandle() {
  if (!operation_->Done()) WithoutGil([this] { operation_->Cancel(); });
}

bool OperationHandle::Done() {
  if (!operation_->Done()) return false;
  buffers_.Release();
  return true;
}

bool OperationHandle::Wait(std::optional<double> timeout_seconds) {
  if (Done()) return true;
  const Deadline deadline =
      Deadline::After(timeout_seconds ? SecondsToDuration(*timeout_seconds) : Deadline::kMax);
  while (true) {
    const Deadline slice = Deadline::At(std::min(deadline.at(), MonotonicNow() + kSignalLatency));
    if (WithoutGil([&] { return operation_->Wait(slice); })) return Done();
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.Expired()) return false;
  }
}

void OperationHandle::Cancel() {
  WithoutGil([this] { operation_->Cancel(); });
  Done();
}

const Operation& OperationHandle::Finished() {
  if (!Done()) throw StatusError(Code::kInternal, "the operation is not done");
  return *operation_;
}

}  // namespace penstock::python
