// A program in words.
#include <algorithm>

#include "formatted.hpp"
#include "numbers.hpp"
#include "program.hpp"
#include "protocol/types.def"

namespace mep::programs {
namespace {

#define MEP_TYPE_NAME(with, number, constant, kind, element, arithmetic, name, short_name, ...) \
#short_name,
constexpr const char* kTypes[] = {"?", MEP_TYPES(MEP_TYPE_NAME, )};
#undef MEP_TYPE_NAME
constexpr const char* kOperators[] = {"?", "sum", "prod", "min", "max", "avg", "and", "or", "xor"};

std::string text_of(const Call& call) {
  std::string text = formatted("%s c%u", mep::name_of(call.kind), call.comm);
  const OperationFacts& facts = facts_of(call.kind);
  if (!facts.has_data()) return text;
  text += formatted(" %zu %s", call.count, kTypes[call.dtype]);
  if (facts.takes_op) text += formatted(" %s", kOperators[call.op]);
  if (facts.is_rooted) text += formatted(" root %u", call.root);
  if (call.in_place) text += " in place";
  return text;
}

std::string list_of(const std::vector<uint32_t>& values) {
  std::string text;
  for (const uint32_t value : values) text += formatted(" %u", value);
  return text;
}

std::string text_of(const Fault& fault) {
  std::string whom = formatted("%u.%u", fault.slot, fault.generation);
  const char* const until = fault.until_admitted ? "until it is in, at most " : "";
  const char* const end = fault.ends_killed ? ", then dies" : "";
  switch (fault.kind) {
    case FaultKind::kKillInit:
      return whom + formatted(" dies %u us into its start", fault.delay_us);
    case FaultKind::kKillBefore:
      return whom + formatted(" dies before step %u, %u us after it came there", fault.step,
                              fault.delay_us);
    case FaultKind::kKillAfter:
      return whom + formatted(" dies after step %u", fault.step);
    case FaultKind::kKillClock:
      return whom + formatted(" dies %u us into step %u", fault.delay_us, fault.step);
    case FaultKind::kKillPoint:
      return whom + formatted(" dies at \"%s\" or after step %u", fault.point.c_str(), fault.step);
    case FaultKind::kKillAt:
      return whom +
             formatted(" dies in step %u at \"%s\", or after it", fault.step, fault.point.c_str());
    case FaultKind::kStop:
      return whom + formatted(" stops %u us into step %u for %u ms", fault.delay_us, fault.step,
                              fault.stop_ms);
    case FaultKind::kStopAt:
      return whom + formatted(" stops in step %u at \"%s\", or after it, for %u ms", fault.step,
                              fault.point.c_str(), fault.stop_ms);
    case FaultKind::kSlow:
      return whom + formatted(" is slow from %u us into step %u on, for %u ms", fault.delay_us,
                              fault.step, fault.stop_ms);
    case FaultKind::kStopInJoin:
      return whom + formatted(
                        " stops %u us after the death that step %u repairs, %s%u ms%s; the "
                        "replacement starts "
                        "after %u us",
                        fault.delay_us, fault.step, until, fault.stop_ms, end, fault.start_us);
  }
  return whom;
}

// Bytes that ranks of an EP object give in one round, and may get.
size_t ep_bytes(const EpShape& shape, size_t ranks) {
  constexpr size_t kPlaces = 16 * 256;  // of arrays, and what lies beside rows
  const size_t row = shape.hidden * (element_bytes(shape.input) + element_bytes(shape.combine));
  const size_t rows = (shape.local_experts * ranks + 1) * shape.max_tokens;
  return shape.buffers * (kPlaces + rows * (row + 16 * (1 + shape.top_k)));
}

}  // namespace

const char* name_of(Mode mode) {
  constexpr const char* kNames[] = {"any", "shm", "tcp", "mixed", "put", "verbs", "threads"};
  return kNames[static_cast<uint32_t>(mode)];
}

const char* name_of(StepKind kind) {
  constexpr const char* kNames[] = {"call",    "batch",    "agree",    "split",     "free",
                                    "revoke",  "timeout",  "mismatch", "evict",     "leave",
                                    "abort",   "recover",  "grow",     "ep create", "ep layers",
                                    "ep free", "messages", "count"};
  return kNames[static_cast<uint32_t>(kind)];
}

std::string Program::text_of(uint32_t number) const {
  const Step& step = steps[number];
  std::string text = formatted("%3u %s", number, name_of(step.kind));
  if (step.actor != kNobody) text += formatted(" by %u", step.actor);
  if (step.target != kNobody) text += formatted(" of %u", step.target);
  if (!step.slots.empty()) text += " slots" + list_of(step.slots);
  if (step.kind == StepKind::kEpCreate || step.kind == StepKind::kEpLayers ||
      step.kind == StepKind::kEpFree) {
    text += formatted(" e%u", step.ep);
  }
  if (step.kind == StepKind::kEpLayers) text += formatted(" %u times", step.count);
  const bool has_comm_only = step.kind == StepKind::kAgree || step.kind == StepKind::kSplit ||
                             step.kind == StepKind::kFree;
  if (has_comm_only) text += formatted(" c%u", step.calls[0].comm);
  for (size_t i = 0; i < step.calls.size() && !has_comm_only; ++i) {
    text += (i == 0 ? ": " : "; ") + programs::text_of(step.calls[i]);
  }
  if (step.kind == StepKind::kGrow) text += formatted(" into c%u", step.children[0]);
  if (step.kind == StepKind::kSplit) {
    text += " into" + list_of(step.children) + ", colors";
    for (const int32_t color : step.colors) text += formatted(" %d", color);
    text += ", keys";
    for (const int32_t key : step.keys) text += formatted(" %d", key);
  }
  for (uint32_t slot = 0; slot < kMaxSlots && step.computing != 0; ++slot) {
    if ((step.computing >> slot & 1) == 0) continue;
    text += formatted(" (%u comes %u ms later)", slot, step.computing_ms);
  }
  if (step.pause_percent != 0) text += formatted(" (%u %% late)", step.pause_percent);
  return text;
}

std::string Program::text() const {
  std::string text =
      formatted("program %llu, mode %s: %u ranks (at most %u), transports %s%s, on loss %u, hosts",
                static_cast<unsigned long long>(seed), name_of(mode), ranks, max_ranks,
                transports.c_str(), maps ? "" : " (put only)", on_loss);
  text += list_of(hosts) + "\n";
  if (suspect_ms != kSuspectMs) text += formatted("suspected after %u ms\n", suspect_ms);
  for (size_t i = 0; i < eps.size(); ++i) {
    const EpShape& ep = eps[i];
    text +=
        formatted("e%zu: on c%u, M %u, H %u, K %u, %u experts a rank, %u buffers, %s to %s, %s%s\n",
                  i, ep.comm, ep.max_tokens, ep.hidden, ep.top_k, ep.local_experts, ep.buffers,
                  kTypes[ep.input], kTypes[ep.combine],
                  ep.high_throughput ? "high throughput"
                  : ep.slotted       ? "slotted"
                                     : "packed",
                  ep.own_memory ? ", own memory" : "");
  }
  for (const Fault& fault : faults) text += programs::text_of(fault) + "\n";
  for (uint32_t step = 0; step < steps.size(); ++step) text += text_of(step) + "\n";
  return text;
}

uint32_t Program::host_count() const {
  uint32_t highest = 0;
  for (const uint32_t host : hosts) highest = host > highest ? host : highest;
  return highest + 1;
}

size_t Program::device_bytes() const {
  constexpr size_t kSlack = size_t{1} << 20;
  size_t most = 0;
  for (const Step& step : steps) {
    size_t bytes = step.kind == StepKind::kMessages ? 2 * max_ranks * kLargestMessage : 0;
    for (const Call& call : step.calls) {
      if (!facts_of(call.kind).has_data()) continue;
      bytes += 2 * max_ranks * call.count * element_bytes(call.dtype) + 4096;
    }
    if (step.kind == StepKind::kEpLayers) bytes = ep_bytes(eps[step.ep], max_ranks);
    most = std::max(most, bytes);
  }
  return most + kSlack;
}

uint32_t Program::world(uint32_t step) const {
  uint32_t number = kWorld;
  for (uint32_t i = 0; i < step && i < steps.size(); ++i) {
    if (steps[i].kind == StepKind::kGrow) number = steps[i].children[0];
  }
  return number;
}

uint32_t Program::comm_count() const {
  uint32_t count = 1;
  for (const Step& step : steps) {
    for (const uint32_t child : step.children) count = child >= count ? child + 1 : count;
  }
  return count;
}

uint32_t Program::generation(uint32_t slot, uint32_t step) const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < step && i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::kRecover) continue;
    for (const uint32_t replaced : steps[i].slots) count += replaced == slot ? 1 : 0;
  }
  return count;
}

bool Program::kills() const {
  for (const Fault& fault : faults) {
    if (!only_stops(fault.kind)) return true;
  }
  return has(StepKind::kEvict) || has(StepKind::kAbort);
}

bool Program::may_be_left_out(uint32_t slot, uint32_t generation) const {
  // The lowest one of two ranks has the majority.
  if (suspect_ms >= kSuspectMs || (max_ranks == 2 && slot == 0)) return false;
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& fault) {
    const bool is_long =
        fault.kind == FaultKind::kStopInJoin ||
        (only_stops(fault.kind) && fault.kind != FaultKind::kSlow && fault.stop_ms > suspect_ms);
    return is_long && fault.slot == slot && fault.generation == generation;
  });
}

bool Program::stops_in_join() const {
  return std::any_of(faults.begin(), faults.end(),
                     [](const Fault& fault) { return fault.kind == FaultKind::kStopInJoin; });
}

bool Program::has(StepKind kind) const {
  for (const Step& step : steps) {
    if (step.kind == kind) return true;
  }
  return false;
}

}  // namespace mep::programs
