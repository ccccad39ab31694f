// A tool as NVTX loads it by NVTX_INJECTION64_PATH. Notes the ranges of one thread.
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace {

std::string& seen() {
  static std::string text;
  return text;
}

nvtxDomainHandle_t NVTX_API make_domain(const char* name) {
  seen() += std::string(name) + ": ";
  return reinterpret_cast<nvtxDomainHandle_t>(&seen());
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  seen() += std::string(attributes->message.ascii) + ' ';
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  seen() += '.';
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* fake_tool_seen() {
  return seen().c_str();
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(make_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
