#include "common/transport/ucx_context.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "common/base/mutex.h"
#include "common/transport/memory_registration.h"

namespace penstock {
namespace {

// Memory of the process's registrations, made known to UCX's devices.
class UcxDevice final : public RegistrationDevice {
 public:
  UcxDevice(const UcxLibrary& ucx, ucp_context_h context) : ucx_(ucx), context_(context) {}

  Result<std::shared_ptr<void>> Map(MutableByteSpan memory) override {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory.data();
    params.length = memory.size();
    ucp_mem_h handle = nullptr;
    const ucs_status_t status = ucx_.ucp_mem_map(context_, &params, &handle);
    if (status != UCS_OK) {
      return Status(Code::kResourceExhausted,
                    fmt::format("registering {} bytes (ulimit -l): {}", memory.size(),
                                ucx_.ucs_status_string(status)));
    }
    return std::shared_ptr<void>(handle, [this](void* mapped) {
      ucx_.ucp_mem_unmap(context_, static_cast<ucp_mem_h>(mapped));
    });
  }

 private:
  const UcxLibrary& ucx_;
  const ucp_context_h context_;
};

struct Settings {
  const char* name;
  const char* value;
};

// Not to be overridden: with another scheme the *sender* would write into the receiver's memory,
// and one that freezes in the middle and wakes up later would write into memory that has long got
// another use.
constexpr Settings kForced[] = {{"RNDV_SCHEME", "get_zcopy"}};

Status Modify(const UcxLibrary& ucx, ucp_config_t* config, const char* name, const char* value) {
  const ucs_status_t status = ucx.ucp_config_modify(config, name, value);
  if (status == UCS_OK) return Status::Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("UCX takes no {}={}: {}", name, value, ucx.ucs_status_string(status)));
}

Status Configure(const UcxLibrary& ucx, ucp_config_t* config, const UcxConfig& wanted) {
  for (const auto& [name, value] : wanted) {
    PENSTOCK_RETURN_IF_ERROR(Modify(ucx, config, name.c_str(), value.c_str()));
  }
  for (const Settings& setting : kForced) {
    PENSTOCK_RETURN_IF_ERROR(Modify(ucx, config, setting.name, setting.value));
  }
  return Status::Ok();
}

Mutex context_mu;
UcxContext* the_context ABSL_GUARDED_BY(context_mu) = nullptr;

}  // namespace

Result<UcxContext*> UcxContext::Get(const UcxConfig& config) {
  MutexLock lock(context_mu);
  if (the_context == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(the_context, Make(config));
  }
  return the_context;
}

Result<UcxContext*> UcxContext::Make(const UcxConfig& wanted) {
  PENSTOCK_ASSIGN_OR_RETURN(const UcxLibrary* const ucx, UcxLibrary::Load());
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx->ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxStatus(*ucx, status, "reading UCX's configuration");
  const std::unique_ptr<ucp_config_t, decltype(ucx->ucp_config_release)> release(
      config, ucx->ucp_config_release);
  PENSTOCK_RETURN_IF_ERROR(Configure(*ucx, config, wanted));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // Every loop has a worker of its own.
  ucp_context_h handle = nullptr;
  status = ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle);
  if (status != UCS_OK) return UcxStatus(*ucx, status, "starting UCX");
  // Lives as long as the process, as the context does.
  const Status attached = AttachRegistrationDevice(*new UcxDevice(*ucx, handle));
  if (!attached.ok()) return attached;
  return new UcxContext(*ucx, handle);
}

std::vector<std::string> UcxContext::Transports() const {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucx_.ucp_context_print_info(handle_, stream);
  std::fclose(stream);
  std::istringstream lines(std::string(text, size));
  std::free(text);
  // "#  resource 1  :  md 1  dev 1  flags -- tcp/eth0"
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    const size_t last = line.find_last_of(' ');
    const bool resource = line.find(" resource ") != line.npos;
    if (resource && last != line.npos) found.push_back(line.substr(last + 1));
  }
  return found;
}

}  // namespace penstock
