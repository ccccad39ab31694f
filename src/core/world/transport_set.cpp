#include "core/world/transport_set.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/topo/hca_choice.hpp"
#include "core/topo/usable.hpp"
#include "core/world/offer.hpp"

namespace mep {
namespace {

// In which order network adapters are to be used.
[[nodiscard]] mep_result_t find_near_adapters(int32_t rank, NearAdapters* out) {
  HcaQuestion question;
  question.fallback_rank = rank;
  HcaChoice choice;
  MEP_TRY(choose_preferred_hca(question, &choice));
  log(LogLevel::kInfo, "HCA: %s", choice.summary.c_str());
  out->names.clear();
  for (size_t i = 0; i < choice.usable; ++i) {
    out->names += (i == 0 ? "" : ",") + choice.ports[i].name();
  }
  out->equals = static_cast<uint32_t>(choice.equals);
  return MEP_SUCCESS;
}

// Whom all map who have these transports.
Shares shared_by(std::span<const TransportSet::Opened> all) {
  Shares shares = Shares::kNothing;
  for (const TransportSet::Opened& each : all) {
    const TransportTraits& traits = each.transport->traits();
    if (!traits.is_mapped) continue;
    const Shares wider = traits.reach == Reach::kProcess ? Shares::kProcess : Shares::kHost;
    shares = std::max(shares, wider);
  }
  return shares;
}

}  // namespace

mep_result_t TransportSet::open(const ResolvedConfig& config) {
  TransportOptions options;
  puts_only = !config.maps;
  options.put_only = puts_only;
  options.suspect_ms = config.suspect_ms;
  options.connect_timeout_ms = config.init_timeout_ms;
  options.one_host = config.rendezvous.empty() && config.store == nullptr;
  options.near_adapters = [rank = config.rank](NearAdapters* out) {
    return find_near_adapters(rank, out);
  };
  const auto wanted = [&](const char* name) {
    return config.transports.empty() ||
           std::find(config.transports.begin(), config.transports.end(), name) !=
               config.transports.end();
  };
  for (const std::string& name : config.transports) {
    const auto table = transport_table();
    if (std::none_of(table.begin(), table.end(),
                     [&](const TransportEntry& entry) { return name == entry.name; })) {
      std::string known;
      for (const TransportEntry& entry : table) known += std::string(" ") + entry.name;
      return fail(MEP_ERR_INVALID_ARGUMENT, "there is no transport \"%s\"; known are:%s",
                  name.c_str(), known.c_str());
    }
  }
  for (const TransportEntry& entry : transport_table()) {
    if (!wanted(entry.name)) continue;
    Opened opened;
    opened.transport = entry.make(options);
    const mep_result_t result = opened.transport->open(&opened.offer);
    // It would be usable: going on without it would only hide what is missing.
    if (result == MEP_ERR_NO_MEMORY || result == MEP_ERR_INVALID_ARGUMENT) return result;
    if (result != MEP_SUCCESS) {
      log(LogLevel::kInfo, "transport %s is not usable: %s", entry.name, last_error_text());
      unusable += std::string(" (") + entry.name + ": " + last_error_text() + ")";
      continue;
    }
    all.push_back(std::move(opened));
  }
  if (config.reads_memory && !puts_only && word.make()) word.show(unguessable_number());
  return MEP_SUCCESS;
}

mep_result_t TransportSet::make_offer(std::vector<std::byte>* offer) const {
  Offer own;
  MEP_TRY(affinity_mask(&own.affinity));
  own.quota = static_cast<uint32_t>(cgroup_core_limit());
  for (const Opened& each : all) own.transports.push_back({each.transport->name(), each.offer});
  own.shares = puts_only ? Shares::kNothing : shared_by(all);
  own.word_at = word.address();
  own.word = word.value();
  *offer = encode_offer(own);
  return MEP_SUCCESS;
}

}  // namespace mep
