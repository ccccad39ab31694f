#include "session.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>

#include "buffer.hpp"
#include "collectives.hpp"
#include "error.hpp"
#include "messages.hpp"
#include "moe_side.hpp"
#include "mpi_side.hpp"
#include "records.hpp"
#include "table.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

constexpr uint32_t kCollectiveRounds = 3;  // checked operations before the timed ones
constexpr uint32_t kMoeRounds = 2;

// Each token is read once and each row written once by dispatch, each row read once and each token written
// once by combine, and the expert reads and writes each row. `rows` are those of all ranks; with several GPUs
// each takes in the rows between its tokens and the experts of the others, as many one way as the other.
double moe_floor_us(const DeviceFloors& device, MoeOperation operation, const MoeShape& shape,
                    double rows) {
  const auto token_bytes =
      static_cast<double>(shape.combine_row_bytes()) * shape.tokens * shape.size;
  const double far_rows = rows / device.gpus * (device.gpus - 1) / device.gpus;
  const double far_dispatch = far_rows * static_cast<double>(shape.dispatch_row_bytes());
  const double far_combine = far_rows * static_cast<double>(shape.combine_row_bytes());
  const double dispatch_bytes = rows * static_cast<double>(shape.dispatch_row_bytes());
  const double combine_bytes = rows * static_cast<double>(shape.combine_row_bytes());
  switch (operation) {
    case MoeOperation::kDispatch:
      return floor_us(device, token_bytes + dispatch_bytes, far_dispatch, 2);
    case MoeOperation::kCombine:
      return floor_us(device, token_bytes + combine_bytes, far_combine, 1);
    case MoeOperation::kMoe:
      break;
  }
  return floor_us(device, 2 * (token_bytes + dispatch_bytes + combine_bytes),
                  far_dispatch + far_combine, 3);
}

// The sides of one size, in the order in which they take turns.
struct Sides {
  std::unique_ptr<Case> mep;
  std::unique_ptr<Case> peer;  // by MPI or NCCL
};

class Session {
 public:
  explicit Session(const RankContext& context)
      : options_(*context.options),
        team_(*context.team),
        comm_(context.comm),
        device_(context.device),
        is_speaker_(team_.rank() == 0),
        progress_(is_speaker_) {
    machine_.device = context.floors;
  }

  bool run() {
    if (is_speaker_) write_rows(options_, {}, {});
    if (writes_files()) origin_ = {library_version(), find_hosts()};
    if (options_.measure_machine && device_ == nullptr) machine_ = measure_machine(team_);
    if (device_ != nullptr) machine_.device.gpus = count_gpus();
    const CollectiveEntry* entry = find_collective(options_.operation);
    const auto pattern = find_message_pattern(options_.operation);
    if (entry != nullptr) {
      run_collective(*entry);
    } else if (pattern.has_value()) {
      run_messages(*pattern);
    } else {
      run_moe();
    }
    return all_right_;
  }

 private:
  void run_collective(const CollectiveEntry& entry);
  void run_collective_size(const CollectiveEntry& entry, size_t count);
  void run_messages(MessagePattern pattern);
  void run_messages_size(MessagePattern pattern, size_t bytes);
  void run_moe();
  void run_moe_size(MoeOperation operation, uint32_t tokens, const Router& router);
  void run_row(const Sides& sides, uint32_t rounds, Row* row);
  void end_device_case(Sides* sides);
  uint64_t verify(Case& subject, uint32_t rounds);
  int count_gpus();
  bool writes_files() const { return !options_.json_path.empty() || !options_.csv_path.empty(); }
  std::vector<std::string> find_hosts();
  void heading(std::string subject);
  void* allocate(size_t bytes, Buffer* plain);

  const Options& options_;
  Team& team_;
  mep_comm_t comm_;
  DeviceRank* device_;
  const bool is_speaker_;
  Progress progress_;
  Machine machine_;
  std::vector<Row> rows_;
  Origin origin_;
  bool all_right_ = true;
};

// Wrong values on all ranks together.
uint64_t Session::verify(Case& subject, uint32_t rounds) {
  double errors = 0;
  for (uint32_t round = rounds; round-- > 0;) {  // ends with round 0, the data that is timed
    subject.sync();
    errors += static_cast<double>(subject.verify(round));
  }
  team_.sum(&errors, 1);
  return static_cast<uint64_t>(errors);
}

void Session::run_row(const Sides& sides, uint32_t rounds, Row* row) {
  // Making graphs and memory can wait for what runs on a GPU: all ranks are done with it.
  if (device_ != nullptr) team_.barrier();
  std::vector<Case*> cases;
  for (Case* subject : {sides.mep.get(), sides.peer.get()}) {
    if (subject == nullptr) continue;
    subject->reset();
    cases.push_back(subject);
  }
  if (options_.check) {
    if (sides.mep) row->errors = verify(*sides.mep, rounds);
    if (sides.peer) row->peer_errors = verify(*sides.peer, rounds);
  }
  progress_.set_subject(row->operation + ", " + bytes_text(static_cast<double>(row->bytes)));
  std::vector<Statistics> statistics;
  measure(options_, team_, cases, progress_, &statistics);
  progress_.clear();
  if (sides.mep) row->mep = statistics.front();
  if (sides.peer) row->peer = statistics.back();
  // Once more after the load: an error that needs many operations shows here.
  if (options_.check) {
    if (sides.mep) *row->errors += verify(*sides.mep, 1);
    if (sides.peer) *row->peer_errors += verify(*sides.peer, 1);
    if (row->errors.value_or(0) + row->peer_errors.value_or(0) > 0) all_right_ = false;
  }
  row->operation = options_.operation;
  if (options_.run_nccl) row->peer_name = "NCCL";
  row->ranks = team_.size();
  if (is_speaker_) print_row(options_, machine_, *row);
  rows_.push_back(std::move(*row));
  // A run that is cut short leaves the rows that it had.
  if (is_speaker_) write_rows(options_, origin_, rows_);
}

void Session::heading(std::string subject) {
  subject += ", " + std::to_string(team_.size()) + (team_.size() == 1 ? " rank" : " ranks");
  if (options_.threads > 0) subject += " (threads)";
  if (device_ != nullptr) {
    const int gpus = machine_.device.gpus;
    subject += gpus == 1 ? " on one GPU" : " on " + std::to_string(gpus) + " GPUs";
    if (!machine_.device.gpu.empty()) subject += ", " + machine_.device.gpu;
    subject += ", graphs of " + std::to_string(kDeviceOperations) + " operations";
  } else if (comm_ != nullptr && team_.size() > 1) {
    std::vector<const char*> transports(static_cast<size_t>(team_.size()));
    mep_comm_info_t info;
    mep_comm_info_defaults(&info);
    info.capacity = static_cast<uint32_t>(transports.size());
    info.transports = transports.data();
    require(mep_comm_query(comm_, &info), "mep_comm_query");
    subject +=
        std::string(", rank 1 by ") + transports[static_cast<size_t>(team_.rank() == 0 ? 1 : 0)];
  }
  if (machine_.cores > 0) {
    subject += ", " + std::to_string(machine_.cores) + (machine_.cores == 1 ? " core" : " cores");
  }
  if (is_speaker_) print_heading(options_, machine_, subject);
}

// Collective.
int Session::count_gpus() {
  std::vector<double> numbers(static_cast<size_t>(team_.size()), 0);
  numbers[static_cast<size_t>(team_.rank())] = device_->gpu_number();
  team_.sum(numbers.data(), numbers.size());
  return static_cast<int>(std::set<double>(numbers.begin(), numbers.end()).size());
}

// Collective. A team sums numbers alone: a double carries six characters of a name exactly.
std::vector<std::string> Session::find_hosts() {
  if (options_.threads > 0) return {host_name()};
  constexpr size_t kCharacters = 6;
  constexpr size_t kNumbers = 11;  // 66 characters; Linux has at most 64
  std::vector<double> numbers(static_cast<size_t>(team_.size()) * kNumbers, 0);
  const std::string own = host_name();
  double* place = &numbers[static_cast<size_t>(team_.rank()) * kNumbers];
  for (size_t i = 0; i < kNumbers * kCharacters; ++i) {
    const unsigned letter = i < own.size() ? static_cast<unsigned char>(own[i]) : 0;
    place[i / kCharacters] = place[i / kCharacters] * 256 + letter;
  }
  team_.sum(numbers.data(), numbers.size());
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < static_cast<size_t>(team_.size()); ++rank) {
    std::string name;
    for (size_t i = 0; i < kNumbers; ++i) {
      const auto packed = static_cast<uint64_t>(numbers[rank * kNumbers + i]);
      for (size_t shift = kCharacters; shift-- > 0;) {
        const auto letter = static_cast<char>(packed >> (8 * shift) & 0xff);
        if (letter != '\0') name += letter;
      }
    }
    if (std::find(hosts.begin(), hosts.end(), name) == hosts.end()) hosts.push_back(name);
  }
  return hosts;
}

// Freeing waits for what runs on a GPU, so nothing of another rank may run then that waits for this one.
void Session::end_device_case(Sides* sides) {
  if (device_ == nullptr) return;
  team_.barrier();
  *sides = Sides();
  team_.barrier();
}

void* Session::allocate(size_t bytes, Buffer* plain) {
  if (!options_.use_mep_memory || comm_ == nullptr) {
    *plain = Buffer(bytes);
    return plain->as<void>();
  }
  void* memory = nullptr;
  require(mep_mem_alloc(comm_, std::max<size_t>(bytes, 1), 0, 0, &memory), "mep_mem_alloc");
  return memory;
}

void Session::run_collective(const CollectiveEntry& entry) {
  std::string subject = entry.name();
  if (entry.has_reduction()) subject += std::string(" ") + reduction_name(options_.reduction);
  if (entry.has_data()) subject += std::string(" of ") + dtype_name(options_.dtype);
  heading(subject);
  if (!entry.has_data()) return run_collective_size(entry, 0);
  const size_t width = mep_dtype_size(options_.dtype);
  double bytes = static_cast<double>(options_.min_bytes);
  size_t last = SIZE_MAX;
  while (true) {
    // A size that is smaller than an element means one element; 0 stays 0.
    const size_t count = bytes < 1 ? 0 : std::max<size_t>(1, static_cast<size_t>(bytes) / width);
    if (count != last) run_collective_size(entry, count);
    last = count;
    bytes = std::max(bytes * options_.factor, static_cast<double>(width));
    if (bytes > static_cast<double>(options_.max_bytes)) return;
  }
}

void Session::run_collective_size(const CollectiveEntry& entry, size_t count) {
  CollectiveCall call;
  call.entry = &entry;
  call.count = count;
  call.dtype = options_.dtype;
  call.reduction = options_.reduction;
  call.rank = team_.rank();
  call.size = team_.size();
  const size_t block = count * mep_dtype_size(options_.dtype);
  Buffer send;
  Buffer recv;
  call.send = allocate(block * static_cast<size_t>(entry.send_blocks(call.size)), &send);
  call.recv = allocate(block * static_cast<size_t>(entry.recv_blocks(call.size)), &recv);
  Sides sides;
  if (options_.run_mep) {
    sides.mep =
        device_ != nullptr ? device_->make_collective(call) : make_mep_collective(call, comm_);
  }
  if (options_.run_mpi) sides.peer = make_mpi_collective(call);
  if (options_.run_nccl) sides.peer = device_->make_nccl_collective(call);
  Row row;
  row.operation = entry.name();
  row.bytes = block;
  row.dtype = entry.has_data() ? dtype_name(options_.dtype) : "none";
  row.data_bytes = static_cast<double>(block) * entry.data(call.size);
  row.bus_factor = entry.bus(call.size);
  row.moved_bytes = row.data_bytes * row.bus_factor * entry.busy_ranks(call.size);
  row.floor_us =
      floor_us(machine_.device, static_cast<double>(block) * entry.traffic(call.size),
               static_cast<double>(block) * entry.taken_in(call.size, machine_.device.gpus),
               call.size > 1 ? 1 : 0);
  run_row(sides, kCollectiveRounds, &row);
  end_device_case(&sides);
  if (options_.use_mep_memory && comm_ != nullptr) {
    sides = Sides();
    team_.barrier();  // nobody reads this rank's memory any more
    require(mep_mem_free(comm_, call.send), "mep_mem_free");
    require(mep_mem_free(comm_, call.recv), "mep_mem_free");
  }
}

void Session::run_messages(MessagePattern pattern) {
  if (team_.size() < 2) throw PerfError("messages need two ranks");
  heading(options_.operation + " of bytes");
  auto bytes = static_cast<double>(options_.min_bytes);
  size_t last = SIZE_MAX;
  while (bytes <= static_cast<double>(options_.max_bytes)) {
    const auto whole = static_cast<size_t>(bytes);
    if (whole != last) run_messages_size(pattern, whole);
    last = whole;
    bytes = std::max(bytes * options_.factor, 1.0);
  }
}

void Session::run_messages_size(MessagePattern pattern, size_t bytes) {
  const Buffer send(message_buffer_bytes(pattern, bytes));
  const Buffer receive(message_buffer_bytes(pattern, bytes));
  std::unique_ptr<MessageSide> mep_side;
  std::unique_ptr<MessageSide> mpi_side;
  Sides sides;
  const auto make = [&](MessageSide& side) {
    return make_message_case(pattern, bytes, team_.rank(), team_.size(), side, send.as<std::byte>(),
                             receive.as<std::byte>());
  };
  if (options_.run_mep) {
    mep_side = make_mep_messages(comm_);
    sides.mep = make(*mep_side);
  }
  if (options_.run_mpi) {
    mpi_side = make_mpi_messages();
    sides.peer = make(*mpi_side);
  }
  const int messages = team_.size() / 2 * (pattern == MessagePattern::kExchange ? 2 : 1);
  Row row;
  row.operation = options_.operation;
  row.bytes = bytes;
  row.dtype = dtype_name(MEP_UINT8);
  row.data_bytes = static_cast<double>(bytes);
  row.moved_bytes = row.data_bytes * messages;
  run_row(sides, kCollectiveRounds, &row);
}

void Session::run_moe() {
  std::string subject = options_.operation + (options_.is_high_throughput ? " ht" : "") +
                        (options_.is_expanded ? " expanded" : "") +
                        (options_.preset.empty() ? "" : " of " + options_.preset) +
                        (options_.run_expert ? "" : " without expert") + ", hidden " +
                        std::to_string(options_.hidden) + ", " + std::to_string(options_.experts) +
                        " experts, top-" + std::to_string(options_.top_k) + ", wire " +
                        (options_.wire_is_fp8 ? "fp8" : "bf16") + ", routing " +
                        options_.routing.text + ", tokens a rank";
  for (const uint32_t tokens : options_.tokens) subject += " " + std::to_string(tokens);
  const Router router(options_.routing, options_.experts, options_.top_k);
  heading(subject);
  MoeOperation operation = MoeOperation::kMoe;
  if (options_.operation == "dispatch") operation = MoeOperation::kDispatch;
  if (options_.operation == "combine") operation = MoeOperation::kCombine;
  for (const uint32_t tokens : options_.tokens) run_moe_size(operation, tokens, router);
}

void Session::run_moe_size(MoeOperation operation, uint32_t tokens, const Router& router) {
  MoeShape shape;
  shape.tokens = tokens;
  shape.hidden = options_.hidden;
  shape.top_k = options_.top_k;
  shape.experts = options_.experts;
  shape.rank = team_.rank();
  shape.size = team_.size();
  const auto ranks = static_cast<uint32_t>(shape.size);
  shape.experts_per_rank = (shape.experts + ranks - 1) / ranks;
  shape.wire_is_fp8 = options_.wire_is_fp8;
  shape.is_high_throughput = options_.is_high_throughput;
  shape.is_expanded = options_.is_expanded;
  MoeProblem problem(shape, router);
  std::unique_ptr<MoeSide> mep_side;
  std::unique_ptr<MoeSide> mpi_side;
  Sides sides;
  if (options_.run_mep && device_ != nullptr) {
    sides.mep = device_->make_moe(operation, problem, options_);
  } else if (options_.run_mep) {
    mep_side = make_mep_moe(problem, options_, comm_);
    sides.mep = make_moe_case(operation, options_, *mep_side, problem);
  }
  if (options_.run_mpi) {
    mpi_side = shape.is_high_throughput ? make_mpi_throughput_moe(problem) : make_mpi_moe(problem);
    sides.peer = make_moe_case(operation, options_, *mpi_side, problem);
  }
  std::vector<double> received = problem.count_rows();  // by each rank, from all
  team_.sum(received.data(), received.size());
  const double rows = std::accumulate(received.begin(), received.end(), 0.0);
  double row_bytes = 0;
  double moved_row_bytes = 0;
  if (operation != MoeOperation::kCombine)
    row_bytes += static_cast<double>(shape.dispatch_row_bytes());
  if (operation != MoeOperation::kDispatch)
    row_bytes += static_cast<double>(shape.combine_row_bytes());
  moved_row_bytes = row_bytes;
  // The expert's output is written once more.
  if (operation == MoeOperation::kMoe && options_.run_expert)
    moved_row_bytes += static_cast<double>(shape.combine_row_bytes());
  Row row;
  row.operation = options_.operation;
  row.dtype = options_.wire_is_fp8 ? "fp8" : "bf16";
  row.layer = {options_.is_high_throughput ? "ht" : "ll",
               options_.routing.text,
               options_.preset,
               tokens,
               shape.hidden,
               shape.experts,
               shape.top_k,
               std::nullopt};
  if (rows > 0) {
    row.layer->imbalance = *std::max_element(received.begin(), received.end()) * shape.size / rows;
  }
  row.data_bytes = row_bytes * rows / shape.size;
  row.bytes = static_cast<uint64_t>(std::llround(row.data_bytes));
  row.bus_factor = static_cast<double>(shape.size - 1) / shape.size;
  row.moved_bytes = moved_row_bytes * rows;
  row.floor_us = moe_floor_us(machine_.device, operation, shape, rows);
  run_row(sides, kMoeRounds, &row);
  end_device_case(&sides);
}

}  // namespace

bool run_session(const RankContext& context) {
  return Session(context).run();
}

}  // namespace mep::perf
