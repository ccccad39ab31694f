#include "core/world/metrics_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/rank_path.hpp"
#include "base/unique_fd.hpp"

namespace mep {
namespace {

struct Labelled {
  CommMetrics comm;
  std::string labels;
};

// A label's value: backslash, quote and line feed are escaped.
std::string escaped(const std::string& value) {
  std::string out;
  for (const char each : value) {
    if (each == '\\' || each == '"') out += '\\';
    if (each == '\n') {
      out += "\\n";
    } else {
      out += each;
    }
  }
  return out;
}

void add_head(const char* name, const char* help, const char* type, std::string* text) {
  *text += std::string("# HELP ") + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
}

void add_sample(const char* name, const std::string& labels, const char* label, uint64_t value,
                std::string* text) {
  *text += std::string(name) + '{' + labels + (*label == '\0' ? "" : ",") + label + "} " +
           std::to_string(value) + '\n';
}

}  // namespace

void MetricsFile::open(uint32_t rank) {
  rank_ = rank;
  (void)rank_path("MEP_METRICS_FILE", config_.metrics_file, rank, true, &path_);
}

void MetricsFile::write(const WorldParticipants& comms, uint64_t now_ns) noexcept {
  next_ns_ = now_ns + config_.metrics_interval_s * uint64_t{1'000'000'000};
  int error = ENOMEM;
  try {
    if (replace(text_of(comms))) return;
    error = errno;
  } catch (const std::exception&) {
    // Out of memory: the next time may be better.
  }
  if (std::exchange(has_warned_, true)) return;
  log(LogLevel::kWarn, "MEP_METRICS_FILE: %s cannot be written (errno %d)", path_.c_str(), error);
}

std::string MetricsFile::text_of(const WorldParticipants& comms) const {
  std::vector<Labelled> all;
  std::set<std::string> names;
  for (const auto& [id, comm] : comms) {
    CommMetrics metrics = comm->metrics();
    // Two samples of one name and the same labels spoil the file.
    if (!names.insert(metrics.name).second) metrics.name += '#' + std::to_string(id);
    std::string labels = "job=\"" + escaped(config_.job) + "\",rank=\"" + std::to_string(rank_) +
                         "\",comm=\"" + escaped(metrics.name) + '"';
    all.push_back({std::move(metrics), std::move(labels)});
  }
  std::string text;
  add_head("mep_epoch", "Epoch of the communicator.", "gauge", &text);
  for (const Labelled& each : all) {
    add_sample("mep_epoch", each.labels, "", each.comm.epoch, &text);
  }
  add_head("mep_live_ranks", "Members of the communicator now.", "gauge", &text);
  for (const Labelled& each : all) {
    add_sample("mep_live_ranks", each.labels, "", each.comm.live, &text);
  }
  const char* last = "";
  for (size_t i = 0; i < kCounters; ++i) {
    const CounterText& counter = kCounterTexts[i];
    if (std::string(last) != counter.name) {
      add_head(counter.name, counter.help, "counter", &text);
    }
    last = counter.name;
    for (const Labelled& each : all) {
      add_sample(counter.name, each.labels, counter.label, each.comm.counters->value(i), &text);
    }
  }
  return text;
}

bool MetricsFile::replace(const std::string& text) const {
  const std::string made = path_ + ".tmp";
  (void)unlink(made.c_str());
  UniqueFd file(::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0644));
  if (!file.valid()) return false;
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file.get(), text.data() + done, text.size() - done);
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  file.reset();
  return rename(made.c_str(), path_.c_str()) == 0;
}

}  // namespace mep
